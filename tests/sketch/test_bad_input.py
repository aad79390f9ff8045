"""Bad input gets one line, with name and value, at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import sketch
from tests.operators import KINDS, OPERATORS

KEY = jax.random.key(0)
X = jnp.ones(10)
every_kind = pytest.mark.parametrize("name", KINDS)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: sketch.count_sketch(0), ValueError, "cols=0"),
        (lambda: sketch.count_sketch(-3), ValueError, "cols=-3"),
        (lambda: sketch.count_sketch(2.5), TypeError, "cols=2.5"),
        (lambda: sketch.count_sketch(True), TypeError, "cols=True"),
        (lambda: sketch.count_sketch("8"), TypeError, "cols='8'"),
        (lambda: sketch.count_sketch(8, rows=0), ValueError, "rows=0"),
        (lambda: sketch.count_sketch(8, hash="md5"), ValueError, "'blocked'.*hash='m"),
        (lambda: sketch.count_sketch(8, query="max"), ValueError, "'mean'.*query='m"),
        (lambda: sketch.count_sketch(8, signs="coin"), ValueError, "signs='coin'"),
        (lambda: sketch.gaussian(0), ValueError, "b=0"),
        (lambda: sketch.ams(1.0), TypeError, "b=1.0"),
        (lambda: sketch.srht(-1), ValueError, "b=-1"),
        (lambda: sketch.uniform_sampling(None), TypeError, "b=None"),
        (lambda: sketch.sparse_embedding(8, 9), ValueError, "nonzeros=9"),
        (lambda: sketch.sparse_embedding(8, 0), ValueError, "nonzeros=0"),
        (
            lambda: sketch.sparse_embedding(8, 3, kind="blocked"),
            ValueError,
            "nonzeros=",
        ),
        (lambda: sketch.sparse_embedding(8, 2, kind="dense"), ValueError, "kind='de"),
        (lambda: sketch.uniform_sampling(11).apply(KEY, X), ValueError, "10.*b=11"),
        (lambda: sketch.srht(17).apply(KEY, X), ValueError, "16.*b=17"),
        (lambda: sketch.srht(17).size(10), ValueError, "b=17"),
        (lambda: sketch.identity().zeros(), ValueError, "Expected like"),
        (lambda: sketch.fixed_key(sketch.identity(), 3), TypeError, "key"),
    ],
)
def test_arguments(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@every_kind
@pytest.mark.parametrize(
    ("update", "error", "words"),
    [
        (jnp.arange(10), TypeError, "int32"),
        ({"w": X, "steps": jnp.int32(3)}, TypeError, r"\['steps'\].*int32"),
        (jnp.ones(10, bool), TypeError, "bool"),
        (jnp.ones(10, jnp.complex64), TypeError, "complex64"),
        (np.ones(10), TypeError, "float64"),
        ([1.0, 2.0], TypeError, "1.0"),
        ({}, ValueError, "got 0"),
        (None, ValueError, "got 0"),
        (jnp.zeros((0, 3)), ValueError, "got 0"),
    ],
)
def test_updates(name, update, error, words):
    op = OPERATORS[name].make(4)
    with pytest.raises(error, match=words):
        op.apply(KEY, update)


@every_kind
@pytest.mark.parametrize(
    "key", [0, None, jnp.zeros(2, jnp.uint32), jax.random.split(KEY, 2)]
)
def test_keys(name, key):
    op = OPERATORS[name].make(4)
    s = op.zeros(X)
    for call in (
        lambda: op.apply(key, X),
        lambda: op.transpose(key, s, 10),
        lambda: op.estimate(key, s, 10),
    ):
        with pytest.raises(TypeError, match=r"jax.random.key\(seed\)"):
            call()


@every_kind
def test_messages_of_another_shape(name):
    op = OPERATORS[name].make(4)
    s = op.zeros(X)
    with pytest.raises(ValueError, match="message of shape"):
        op.transpose(KEY, s[:-1] if s.ndim == 1 else s[:, :-1], 10)


@every_kind
@pytest.mark.parametrize("d", [0, -1, 2**31])
def test_lengths(name, d):
    op = OPERATORS[name].make(4)
    with pytest.raises(ValueError, match=f"d={d}"):
        op.transpose(KEY, jnp.zeros(4), d)
