r"""Measures the accuracy that a sketch loses as the model grows in width.

python -m launch.scaling --config=configs/scaling.py:fashion_mnist \
    --workdir=/tmp/scaling --data_dir=DATA
python -m launch.scaling --config=configs/scaling.py:fashion_mnist \
    --workdir=/tmp/longer --data_dir=DATA --width=200 --set=rounds=1600

Every width is trained with and without sketches, with several server optimizers. Each
rate is tuned until both of its neighbours are worse. The folder gets runs.csv
(accuracy, training error, norm of the model, flatness of the second moment),
standings.csv (their means), gaps.csv, fits.csv (gaps fitted by powers of b, d and the
intrinsic dimension), spectra.csv (intrinsic dimensions), search.csv and three pictures.
Run the same command again to resume. The config file defines `get_laboratory`.
"""

from absl import flags

from fl_sketch.experiments import scaling
from fl_sketch.sweep import comparison
from launch import command, options

CONFIG = flags.DEFINE_string("config", None, "File configs/scaling.py[:ARGUMENT].")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
WIDTH = flags.DEFINE_multi_integer("width", [], "Width to train. Repeatable.")
SET = flags.DEFINE_multi_string("set", [], "KEY=VALUE for the config of every run.")
DATA_DIR = options.data_dir()
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the experiment of --config, or resumes it."""
    lab = comparison.load(CONFIG.value, "get_laboratory")
    where = WORKDIR.value, DATA_DIR.value
    gaps = scaling.run(lab, *where, widths=WIDTH.value, settings=SET.value)
    scaling.TABLE.record(gaps)
    print(f"results in {WORKDIR.value}")


if __name__ == "__main__":
    command.run(main)
