"""A sketched adaptive federated model beside its unsketched twin, in a minute.

python -m launch.quickstart
python -m launch.quickstart --config.sketch.compression=100 --config.rounds=400
"""

import tempfile

from absl import flags

from fl_sketch.sweep import side_by_side
from launch import command, parsing

CONFIG = parsing.config_flag("configs/quickstart.py")
WORKDIR = flags.DEFINE_string("workdir", None, "For the results; by default a new one.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)


def main():
    """Trains the config and its unsketched twin, and compares them."""
    config = CONFIG.value
    twin = config.copy_and_resolve_references()
    twin.algorithm = "fedopt"
    workdir = WORKDIR.value or tempfile.mkdtemp(prefix="fl_sketch_")
    names = (f"SAFL, 1/{config.sketch.compression:g}", "FedAdam")
    side_by_side(dict(zip(names, (config, twin), strict=True)), workdir, DATA_DIR.value)


if __name__ == "__main__":
    command.run(main)
