"""Trains a federated model with and without sketches (SAFL, FedAdam), in a minute.

python -m launch.quickstart
python -m launch.quickstart --config.sketch.compression=100 --config.rounds=400

SAFL is sketched adaptive federated learning: clients upload sketches, which are a few
random sums of their updates. FedAdam is the same method without sketches. The last
lines compare their accuracy and the bytes that clients sent and received.
"""

import tempfile

from absl import flags

from fl_sketch.algorithms import catalog
from fl_sketch.sweep import side_by_side
from launch import command, options, parsing

CONFIG = parsing.config_flag("configs/quickstart.py")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder for the results; default: a new temporary one."
)
DATA_DIR = options.data_dir()
SAFL = "SAFL: clients upload sketches of their updates, and the server runs {} on them."
PLAIN = "{}: the same without sketches; clients upload whole updates."


def main():
    """Trains the config with and without its sketch, and compares both."""
    config = CONFIG.value
    plain = config.copy_and_resolve_references()
    optimizer = config.server.optimizer
    known = {server: name for name, server in catalog.SERVERS.items()}
    plain.algorithm = known.get(optimizer, "fedopt")
    title = {"fedadam": "FedAdam"}.get(plain.algorithm, plain.algorithm)
    print(SAFL.format(optimizer), PLAIN.format(title), "", sep="\n", flush=True)
    workdir = WORKDIR.value or tempfile.mkdtemp(prefix="fl_sketch_")
    names = (f"SAFL, 1/{config.sketch.compression:g}", title)
    side_by_side(
        dict(zip(names, (config, plain), strict=True)), workdir, DATA_DIR.value
    )


if __name__ == "__main__":
    command.run(main)
