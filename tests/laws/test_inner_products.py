"""Inner products of de-sketched vectors: Song et al.'s coordinate-wise embedding.

Definition D.9 asks of a sketch that <R^T R x, h> is unbiased, has a second moment of at
most <x, h>^2 + a/b |x|^2 |h|^2, and a tail: how likely it is to be off by how much.
"""

import math

import numpy as np
import pytest

from fl_sketch import theory
from fl_sketch.theory.song import EMBEDDING
from tests.laws.test_sketches import KEYS, MANY, answers, vector
from tests.operators import every_operator

SHAPES = [shape[:2] for shape in MANY]
FAILURES = (0.1, 0.01)


def rows_of(name):
    """Returns an operator's name in configs, and the rows of its messages."""
    return ("count_sketch", 5) if name == "count_sketch_x5" else (name, 1)


def strays(name, d, b):
    """Returns the vectors h of length 1 and <R^T R x, h> - <x, h> over |x|, by key."""
    x, back = np.asarray(vector(d), np.float64), answers(name, d, b, KEYS).desketched
    hs = [x, np.eye(d)[np.argmax(x)], np.ones(d), vector(d, 2)]
    hs = np.stack([np.asarray(h, np.float64) / np.linalg.norm(h) for h in hs])
    return x / np.linalg.norm(x), hs, (back - x) @ hs.T / np.linalg.norm(x)


@every_operator
@pytest.mark.parametrize(("d", "b"), SHAPES)
def test_inner_products_are_unbiased_with_the_second_moment_of_the_paper(name, d, b):
    x, hs, off = strays(name, d, b)
    error = off.std(axis=0) / KEYS**0.5
    assert np.all(np.abs(off.mean(axis=0)) <= 4.5 * error + 1e-6)

    operator, rows = rows_of(name)
    # Lemma D.16: of uniform sampling it is the number of parameters.
    a = EMBEDDING.get(operator, 0 if operator == "identity" else d)
    inner = (x * hs).sum(axis=1)
    second = (off + inner) ** 2
    most = inner**2 + a / (rows * b)
    assert np.all(
        second.mean(axis=0) <= most + 4 * second.std(axis=0) / KEYS**0.5 + 1e-6
    )


def tail_of(name, d, b, failure):
    """Returns the tail of Song et al.'s Lemmas D.23 to D.28, constants one."""
    operator, rows = rows_of(name)
    if operator == "sparse_embedding":  # D.27, of the nonzero numbers in a column
        return math.log(d / failure) ** 1.5 / math.sqrt(4)
    if operator == "uniform_sampling":  # D.28, always
        return 1 + d / b
    # A mean of rows is off by more only where one of them is.
    return theory.safl.tail(operator, d, rows * b, failure / rows)


@every_operator
@pytest.mark.parametrize(("d", "b"), SHAPES)
def test_inner_products_have_the_tail_of_the_paper(name, d, b):
    _, _, off = strays(name, d, b)
    for failure in FAILURES:
        beyond = (np.abs(off) > tail_of(name, d, b, failure) + 1e-5).mean(axis=0)
        assert np.all(beyond <= failure)


@every_operator
@pytest.mark.parametrize(("d", "b"), SHAPES)
def test_inner_products_stray_by_one_over_the_root_of_the_message(name, d, b):
    """Within the second moment's bound and not far below: the tail's scale is right."""
    operator, rows = rows_of(name)
    if operator in ("identity", "uniform_sampling"):
        return
    _, _, off = strays(name, d, b)
    scaled = off.std(axis=0) * math.sqrt(rows * b)
    assert np.all(scaled <= 1.05 * math.sqrt(EMBEDDING[operator]))
    assert np.any(scaled > 0.7)
