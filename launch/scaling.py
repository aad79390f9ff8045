r"""Measures what a sketch costs as the model grows: a family of models by width.

python -m launch.scaling --config=configs/scaling.py:fashion_mnist \
    --workdir=/tmp/scaling --data_dir=DATA
python -m launch.scaling --config=configs/scaling.py:fashion_mnist \
    --workdir=/tmp/longer --data_dir=DATA --width=200 --set=rounds=1600

Every width is trained with and without sketches by several servers, each rate tuned
until a worse one is known on either side. The folder gets runs.csv (accuracy, true
training error, length of the model, flatness of the second moment), standings.csv
(their means), gaps.csv, fits.csv (the powers of b, d and the intrinsic dimension that
gaps go by), spectra.csv (intrinsic dimensions), search.csv and three pictures. The same
command again goes on. A file for this command has `get_laboratory`.
"""

from absl import flags

from fl_sketch.experiments import scaling
from fl_sketch.sweep import comparison
from launch import command, options

CONFIG = flags.DEFINE_string("config", None, "A file configs/scaling.py[:which].")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
WIDTH = flags.DEFINE_multi_integer("width", [], "One of the widths; may be repeated.")
SET = flags.DEFINE_multi_string("set", [], "key=value, for the config of every run.")
DATA_DIR = options.data_dir()
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the laboratory of --config, or what an earlier command left of it."""
    lab = comparison.load(CONFIG.value, "get_laboratory")
    where = WORKDIR.value, DATA_DIR.value
    gaps = scaling.run(lab, *where, widths=WIDTH.value, settings=SET.value)
    scaling.TABLE.record(gaps)
    print(f"results in {WORKDIR.value}")


if __name__ == "__main__":
    command.run(main)
