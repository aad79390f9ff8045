r"""Makes a data set of features of images, by a pretrained or by a small network.

python -m launch.features --dataset=cifar10 --data_dir=DATA --out=/tmp/features
python -m launch.train --config=configs/das_features.py --workdir=/tmp/das_features \
    --data_dir=/tmp/features
python -m launch.features --dataset=cifar10 --data_dir=DATA --out=/tmp/features \
    --model=efficientnet

Without --model a small network is trained on half of the images, and the other half
gets features. The folder gets cifar10_features.npz. A config reads it by
`data.name=npz/cifar10_features`.
"""

import os

from absl import flags

from fl_sketch.core import files
from fl_sketch.data import datasets, npz
from fl_sketch.experiments import features
from launch import command, options

DATASET = flags.DEFINE_string("dataset", "cifar10", "Data set of images.")
OUT = flags.DEFINE_string("out", None, "Folder for the file.")
MODEL = flags.DEFINE_string("model", None, "Folder of a pretrained model of images.")
WIDTH = flags.DEFINE_integer("width", 512, "Number of features.", lower_bound=1)
EPOCHS = flags.DEFINE_integer(
    "epochs", 4, "Epochs of the small network.", lower_bound=1
)
DATA_DIR = options.data_dir()
flags.mark_flags_as_required(["out"])


def main():
    """Writes the features of --dataset."""
    files.writable_folder(OUT.value, "out")
    splits = datasets.load(DATASET.value, DATA_DIR.value)
    path = os.path.join(OUT.value, f"{DATASET.value}_features.npz")
    if MODEL.value:
        made = features.of_pretrained(splits, MODEL.value)
    else:
        made = features.extract(splits, width=WIDTH.value, epochs=EPOCHS.value)
    npz.save(path, *made)
    print(f"{len(made[0].targets)} and {len(made[1].targets)} examples in {path}")


if __name__ == "__main__":
    command.run(main, devices=1)
