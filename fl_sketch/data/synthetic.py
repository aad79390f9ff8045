"""Made-up examples, as many as one likes: to try sizes with, not methods.

Images of random bytes, labelled by the largest of ten noisy linear functions of them.
All is done in integers, so that it is the same everywhere.

>>> splits = load("synthetic/1000")
>>> splits.train.inputs.shape, splits.test.inputs.shape
((1000, 4, 4, 1), (10000, 4, 4, 1))
"""

import re

import numpy as np

from fl_sketch.data.examples import Examples, Splits

NAME = "synthetic"
SEED, SIDE, CLASSES, TESTS = 0, 4, 10, 10_000
LARGEST, NOISE = 64, 2**14  # of a weight, and of what is added to a label's score
BLOCK = 2**18  # examples scored at once


def load(name: str) -> Splits:
    """Returns the data set of `name`, "synthetic/<number of training examples>".

    The 10,000 examples for testing are the same for every number.

    Raises:
      ValueError: for a name of another form, or a number above 2^31 - 1.
    """
    match = re.fullmatch(rf"{NAME}/([1-9]\d{{0,9}})", name)
    if not match or int(match[1]) >= 2**31:
        msg = f"Expected {NAME}/N with 1 <= N < 2^31 training examples, got {name!r}."
        raise ValueError(msg)
    random = np.random.default_rng(SEED)
    weights = random.integers(-LARGEST, LARGEST, (SIDE**2, CLASSES), np.int32)
    test = _examples(TESTS, weights, random)  # first: the same for every N
    return Splits(name, _examples(int(match[1]), weights, random), test, CLASSES)


def _examples(count: int, weights: np.ndarray, random: np.random.Generator) -> Examples:
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
