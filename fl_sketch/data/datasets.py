"""Real data sets by name.

>>> train, test = load("digits")[1:3]
>>> train.inputs.shape, test.inputs.shape
((1437, 8, 8, 1), (360, 8, 8, 1))

====================  ====================================  =======  ==================
name                  inputs                                classes  from
====================  ====================================  =======  ==================
digits                float32 [1437 + 360, 8, 8, 1]         10       scikit-learn
mnist, fashion_mnist  uint8 [60000 + 10000, 28, 28, 1]      10       idx files
cifar10               uint8 [50000 + 10000, 32, 32, 3]      10       lossless WebP
                                                                     strips
sst2                  67349 + 1821 sentences                2        tsv files
shakespeare           5798 + 1299 speeches, by speaker      299      a text file
synthetic/N           uint8 [N + 10000, 4, 4, 1]            10       made up, for large
                                                                     populations
npz/FILE              arrays of any shape                   any      `npz`: FILE.npz in
                                                                     `data_dir`
FILE.py:NAME          the same, from your own function      any      any Python file
====================  ====================================  =======  ==================

The sets of raw files are read once, from `data_dir`, into a cache of npy files. Any
other name is that of a TFDS image or text set which is already prepared, such as
"emnist/letters" or "mnist:3.0.1".
"""

import gzip
import importlib.util
import os
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from fl_sketch.core import plugins, validate
from fl_sketch.data import cache, npz, raw
from fl_sketch.data.examples import Examples as Examples
from fl_sketch.data.examples import Splits as Splits
from fl_sketch.data.examples import from_parts
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
    cache_dir: str | os.PathLike | None = None,
    targets: str = npz.CLASSES,
    finite: bool = True,
) -> Splits:
    """Returns a data set by name; one of raw files is read into the cache first.

    Args:
      name: a name of the table above. FILE.py:NAME is a function without arguments
        that returns the arrays of an npz file by their names.
      data_dir: the folder of raw files; by default that of FL_SKETCH_DATA. If there is
        one, the checksums of its files are verified each time, and files that changed
        are read again. Otherwise the cache is read.
      cache_dir: the folder of the cache; by default ~/.cache/fl_sketch. TFDS data sets
        are below `tfds` there.
      targets: the kind of the targets, "classes", "labels" or "numbers"; only npz files
        and your own functions may have other targets than classes.
      finite: whether training data of npz files and your own functions must be finite.

    Raises:
      FileNotFoundError: for a missing folder or file, or an unknown name.
      ValueError: for a file with another checksum than is listed in its folder, or for
        data of another kind.
    """
    if plugins.named(name):
        return npz.checked(
            name, _made(name), where=name, targets=targets, finite=finite
        )
    if name.split("/")[0] == npz.NAME:
        return npz.load(name, data_dir, targets, finite=finite)
    if targets != npz.CLASSES:
        msg = f"Expected a loss of classes, which {name} has, got one of {targets}."
        raise ValueError(msg)
    if name == "digits":
        return _digits()
    if name.split("/")[0] == SYNTHETIC:
        return _synthetic(name)
    if name in raw.SOURCES:
        return _from_raw(name, data_dir, cache_dir)
    from fl_sketch.data import tfds_sets  # importing TFDS takes seconds

    splits = tfds_sets.read(name, cache_dir)
    if splits is None:
        known = ("digits", *raw.SOURCES, "npz/FILE", "synthetic/N", plugins.SHAPE)
        msg = (
            f"Expected a data set of {', '.join(known)}, or a TFDS data set that is "
            f"prepared in {cache.root(cache_dir) / tfds_sets.FOLDER}, got {name!r}."
        )
        raise FileNotFoundError(msg + validate.nearest(name, known))
    return splits


def _made(name: str) -> Mapping[str, np.ndarray]:
    """Returns what a function in a file returns, which must be arrays by name."""
    make = plugins.load(name)
    arrays = make() if callable(make) else make
    if not isinstance(arrays, Mapping):
        msg = f"Expected {name} to return arrays by name, got {type(arrays).__name__}."
        raise TypeError(msg)
    return {key: np.asarray(array) for key, array in arrays.items()}


def _from_raw(
    name: str, data_dir: str | os.PathLike | None, cache_dir: str | os.PathLike | None
) -> Splits:
    source, path = raw.SOURCES[name], raw.folder(data_dir)
    folder = cache.folder(cache_dir, name)
    made_from = raw.verified(name, path) if path else cache.origin(folder)
    if made_from is None:
        msg = (
            f"Expected a folder with the raw files of {name}, not yet prepared in "
            f"{folder}: pass --data_dir or set {raw.VARIABLE}."
        )
        raise FileNotFoundError(msg)

    def read(part: str) -> Examples:
        assert path is not None  # without it, the origin is that of the cache
        return source.examples(path, part)

    def named():
        assert path is not None
        return source.named(path)

    parts = cache.examples(folder, made_from, read, named)
    names = cache.class_names(folder)
    return from_parts(name, parts, source.classes or 0, class_names=names)


def _digits() -> Splits:
    # The file alone: importing scikit-learn takes longer than compiling a round.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        msg = "Expected scikit-learn, which has the data set digits, got none: "
        msg += "pip install scikit-learn."
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
