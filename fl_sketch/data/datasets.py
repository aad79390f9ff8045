"""Data sets by name.

>>> train, test = load("digits")[1:3]
>>> train.inputs.shape, test.inputs.shape
((1437, 8, 8, 1), (360, 8, 8, 1))

- "digits": float32 [1437 + 360, 8, 8, 1] of scikit-learn;
- "mnist", "fashion_mnist", "cifar10", "sst2", "shakespeare": public files, see `raw`;
- "synthetic/N": uint8 [N + 10000, 4, 4, 1], made up, for large populations;
- "npz/FILE": arrays of your own, see `npz`;
- "FILE.py:NAME": the same, returned by a function of yours.
"""

import gzip
import importlib.util
import os
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from fl_sketch.core import plugins, validate
from fl_sketch.data import npz, raw
from fl_sketch.data.examples import Examples as Examples
from fl_sketch.data.examples import Splits as Splits
from fl_sketch.data.examples import normalise as normalise
from fl_sketch.data.examples import with_classes as with_classes

DIGITS_SEED = 0  # of the one shuffle that decides which digits are for testing
DIGITS = "datasets/data/digits.csv.gz"  # in scikit-learn's folder
SYNTHETIC = "synthetic"
SEED, SIDE, CLASSES, TESTS = 0, 4, 10, 10_000  # of synthetic examples
LARGEST, NOISE = 64, 2**14  # of a weight, and of what is added to a label's score
BLOCK = 2**18  # examples scored at once
MOST_CLASSES = npz.MOST


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    targets: str = npz.CLASSES,
    finite: bool = True,
) -> Splits:
    """Returns a data set by name.

    Args:
      name: one of the above. FILE.py:NAME is a function without arguments that returns
        the arrays of an npz file by their names.
      data_dir: the folder of data sets; by default that of FL_SKETCH_DATA.
      targets: what the targets of your own arrays are, as in `npz.checked`.
      finite: whether training data of your own arrays must be finite.
    """
    if plugins.named(name):
        made = plugins.load(name)
        arrays = made() if callable(made) else made
        if not isinstance(arrays, Mapping):
            msg = f"Expected {name} to return arrays by name, got "
            raise TypeError(msg + f"{type(arrays).__name__}.")
        arrays = {key: np.asarray(array) for key, array in arrays.items()}
        return npz.checked(name, arrays, where=name, targets=targets, finite=finite)
    if name.split("/")[0] == npz.NAME:
        return npz.load(name, data_dir, targets, finite=finite)
    if targets != npz.CLASSES:
        msg = f"Expected a loss of classes, which {name} has, got one of {targets}."
        raise ValueError(msg)
    if name == "digits":
        return _digits()
    if name.split("/")[0] == SYNTHETIC:
        return _synthetic(name)
    if name not in raw.READERS:
        known = ("digits", *raw.READERS, "npz/FILE", "synthetic/N", plugins.SHAPE)
        msg = f"Expected a data set of {', '.join(known)}, got {name!r}."
        raise FileNotFoundError(msg + validate.nearest(name, known))
    path = raw.folder(data_dir)
    if path is None:
        msg = f"Expected a folder with the files of {name}, which docs/data.md names: "
        raise FileNotFoundError(msg + f"pass --data_dir or set {raw.VARIABLE}.")
    return raw.READERS[name](path)


def _digits() -> Splits:
    # The file alone: importing scikit-learn takes longer than compiling a round.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        msg = "Expected scikit-learn, which has the data set digits, got none: "
        raise ModuleNotFoundError(msg + "pip install scikit-learn.")
    with gzip.open(pathlib.Path(package.origin).parent / DIGITS) as rows:
        table = np.loadtxt(rows, np.uint8, delimiter=",")
    images, labels = table[:, :-1], table[:, -1]
    order = np.random.default_rng(DIGITS_SEED).permutation(len(labels))
    inputs = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)[order]
    targets = np.asarray(labels, np.int32)[order]
    end = len(labels) * 4 // 5
    train = Examples(inputs[:end], targets[:end])
    return Splits("digits", train, Examples(inputs[end:], targets[end:]), 10)


def _synthetic(name: str) -> Splits:
    """Returns images of random bytes, labelled by noisy linear functions of them.

    All is done in integers, so that it is the same everywhere. The examples for testing
    are the same for every number of training examples.
    """
    match = re.fullmatch(rf"{SYNTHETIC}/([1-9]\d{{0,9}})", name)
    if not match or int(match[1]) >= 2**31:
        msg = f"Expected {SYNTHETIC}/N with 1 <= N < 2^31 training examples, got "
        raise ValueError(msg + f"{name!r}.")
    random = np.random.default_rng(SEED)
    weights = random.integers(-LARGEST, LARGEST, (SIDE**2, CLASSES), np.int32)
    test = _labelled(TESTS, weights, random)  # first: the same for every N
    return Splits(name, _labelled(int(match[1]), weights, random), test, CLASSES)


def _labelled(count: int, weights: np.ndarray, random: np.random.Generator) -> Examples:
    inputs = random.integers(0, 256, (count, SIDE, SIDE, 1), np.uint8)
    targets = np.empty(count, np.int32)
    for begin in range(0, count, BLOCK):
        rows = inputs[begin : begin + BLOCK].reshape(-1, SIDE**2).astype(np.float32)
        rows = 2 * rows - 255  # of mean zero, or a few labels would be all
        # Exact in any order of summation: no partial sum comes near 2^24.
        scores = rows @ weights.astype(np.float32)
        scores += random.integers(0, NOISE, scores.shape, np.int32)
        targets[begin : begin + BLOCK] = scores.argmax(axis=1)
    return Examples(inputs, targets)
