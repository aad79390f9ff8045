"""Real data sets by name.

>>> train, test = load("digits")[1:3]
>>> train.inputs.shape, test.inputs.shape
((1437, 8, 8, 1), (360, 8, 8, 1))

====================  ====================================  =======  ==================
name                  inputs                                classes  where from
====================  ====================================  =======  ==================
digits                float32 [1437 + 360, 8, 8, 1]         10       scikit-learn's own
mnist, fashion_mnist  uint8 [60000 + 10000, 28, 28, 1]      10       idx files
cifar10               uint8 [50000 + 10000, 32, 32, 3]      10       lossless WebP
                                                                     strips
sst2                  67349 + 1821 sentences                2        tsv files
shakespeare           5798 + 1299 speeches, by speaker      299      a text file
synthetic/N           uint8 [N + 10000, 4, 4, 1]            10       made up, for large
                                                                     populations
npz/FILE              arrays of any shape                   any      `archive`: FILE.npz
                                                                     in `data_dir`
FILE.py:NAME          the same, by a function of one's own  any      any Python file
====================  ====================================  =======  ==================

All but the first and the last two are prepared once, from raw files in `data_dir`, as
TFDS data sets on array_record. Any other name is that of a TFDS image or text set
which is already prepared, such as "emnist/letters" or "mnist:3.0.1".
"""

import gzip
import importlib.util
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from fl_sketch.core import plugins
from fl_sketch.data import npz, raw, synthetic
from fl_sketch.data.examples import Examples as Examples
from fl_sketch.data.examples import Splits as Splits
from fl_sketch.data.examples import normalise as normalise
from fl_sketch.data.examples import with_classes as with_classes

DIGITS_SEED = 0  # of the one shuffle that decides which digits are for testing
DIGITS = "datasets/data/digits.csv.gz"  # in scikit-learn's folder
NAMES = ("digits", *raw.SOURCES)
MOST_CLASSES = npz.MOST


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    tfds_dir: str | os.PathLike | None = None,
    targets: str = npz.CLASSES,
) -> Splits:
    """Returns a data set by name, preparing it first if it is one of `NAMES`.

    Args:
      name: one of `NAMES`, "synthetic/<number of training examples>", "npz/<file>",
        FILE.py:NAME, a function without arguments that returns the arrays of an npz
        file by their names, or the name of a prepared TFDS data set.
      data_dir: the folder of raw files; by default that of FL_SKETCH_DATA. Where
        there is one, its files are verified each time. Without one, what was
        prepared before is read.
      tfds_dir: the folder of prepared data; by default ~/.cache/fl_sketch/tfds.
      targets: the kind of the targets, "classes", "labels" or "numbers"; sets that are
        not one's own have classes.

    Raises:
      FileNotFoundError: for a missing folder or file, or an unknown name.
      ValueError: for a file with another checksum than is listed beside it, for
        prepared data that were made from other files, or for data of another kind.
    """
    if plugins.named(name):
        return npz.checked(name, _made(name), where=name, targets=targets)
    if name.split("/")[0] == npz.NAME:
        return npz.load(name, data_dir, targets)
    if targets != npz.CLASSES:
        msg = f"Expected a loss of classes, which {name} has, got one of {targets}."
        raise ValueError(msg)
    if name == "digits":
        return _digits()
    if name.split("/")[0] == synthetic.NAME:
        return synthetic.load(name)
    from fl_sketch.data import prepared  # for digits there is no need of TFDS

    return prepared.read(name, data_dir, tfds_dir)


def _made(name: str) -> Mapping[str, np.ndarray]:
    """Returns what a function in a file returns, which must be arrays by name."""
    make = plugins.load(name)
    found = make() if callable(make) else make
    if not isinstance(found, Mapping):
        msg = f"Expected {name} to return arrays by name, got {type(found).__name__}."
        raise TypeError(msg)
    return {key: np.asarray(array) for key, array in found.items()}


def _digits() -> Splits:
    # The file alone: to import scikit-learn takes longer than to compile a round.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        msg = "Expected scikit-learn to be installed, whose digits these are."
        raise ModuleNotFoundError(msg)
    file = pathlib.Path(package.origin).parent / DIGITS
    with gzip.open(file) as rows:
        table = np.loadtxt(rows, np.uint8, delimiter=",")
    images, labels = table[:, :-1], table[:, -1]
    order = np.random.default_rng(DIGITS_SEED).permutation(len(labels))
    inputs = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)[order]
    targets = np.asarray(labels, np.int32)[order]
    end = len(labels) * 4 // 5
    train = Examples(inputs[:end], targets[:end])
    return Splits("digits", train, Examples(inputs[end:], targets[end:]), 10)
