"""Compressors keep their promises, and their bytes are the bytes they state."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.core import wire
from fl_sketch.sketch import compressors
from tests.channels.cases import COMPRESSORS, D
from tests.channels.rounds import quickly

KEY = jax.random.key(0)
DRAWS = 4000

_noise = np.random.default_rng(1).normal(size=D)
_signs = np.where(np.arange(D) % 3 == 1, -1.0, 1.0)
VECTORS = {
    "uneven": _noise * (1 + np.arange(D) % 5),
    "flat": 3 * _signs,
    "steep": _signs / (1.0 + np.arange(D)) ** 1.5,
    "tiny": _noise * 1e-3,
    "huge": _noise * 1e6,
    "one number": 2.0 * (np.arange(D) == 7),
    "zero": np.zeros(D),
    "all nan": np.full(D, np.nan),
    "one nan": np.where(np.arange(D) == 3, np.nan, _noise),
}
X = np.array([*VECTORS.values()], np.float32)
FINITE = np.isfinite(X).all(axis=1)
MOVING = FINITE & X.any(axis=1)  # finite, and not zero

every_compressor = pytest.mark.parametrize("name", COMPRESSORS)


class Drawn(NamedTuple):
    """What a compressor makes of all vectors, with DRAWS keys.

    Attributes:
      seen: what `apply` returns, [DRAWS, vectors, D].
      code: the message of each, an array for every field.
      received: what `expand` makes of it.
    """

    seen: np.ndarray
    code: Any
    received: np.ndarray


@functools.cache
def keys():
    return jax.random.split(KEY, DRAWS)


@functools.cache
def drawn(name):
    """Returns all that laws ask of a compressor, of one program."""
    case = COMPRESSORS[name].at(D)

    def both(key, x):
        code = case.compress(key, x)
        return Drawn(case.apply(key, x), code, case.expand(code, D))

    def of_vectors(key):
        return jax.vmap(both, in_axes=(None, 0))(key, X)

    program = quickly(lambda keys: jax.lax.map(of_vectors, keys, batch_size=20))
    return jax.tree.map(np.asarray, program(keys()))


@every_compressor
def test_bytes_are_the_stated_bits_rounded_up(name):
    case, found = COMPRESSORS[name].at(D), drawn(name)
    assert case.bits(D) == COMPRESSORS[name].bits
    for vector in np.flatnonzero(FINITE):
        code = [array[0, vector] for array in found.code]
        data = wire.encode(case.fields(D), code)
        assert len(data) == math.ceil(case.bits(D) / 8)
        for sent, got in zip(code, wire.decode(case.fields(D), data), strict=True):
            np.testing.assert_array_equal(got, sent)


@every_compressor
def test_the_receiver_makes_of_the_message_what_is_said_to_arrive(name):
    found = drawn(name)
    np.testing.assert_allclose(
        found.received[:, FINITE], found.seen[:, FINITE], rtol=1e-6
    )


@every_compressor
def test_the_error_is_that_of_its_formula_and_no_more_than_promised(name):
    row, found = COMPRESSORS[name], drawn(name)
    for vector in np.flatnonzero(FINITE):
        x = X[vector].astype(np.float64)
        errors = np.sum((found.seen[:, vector] - x) ** 2, axis=1)
        doubt = 4 * errors.std() / DRAWS**0.5 + 1e-5 * (x @ x)
        assert errors.mean() <= row.promised(x) + doubt
        if row.error:
            assert errors.mean() == pytest.approx(row.error(x), abs=doubt)


@every_compressor
def test_those_are_unbiased_that_say_so_and_no_others(name):
    samples = drawn(name).seen[:, FINITE].astype(np.float64)
    doubt = 4 * samples.std(axis=0) / DRAWS**0.5
    error = np.abs(samples.mean(axis=0) - X[FINITE])
    unbiased = np.all(error <= doubt + 1e-5 * np.abs(X[FINITE]))
    assert unbiased == COMPRESSORS[name].at(D).unbiased


@every_compressor
def test_those_are_contractions_that_say_so_and_no_others(name):
    """Whatever the vector: it is what keeps memories of errors short."""
    found, x = drawn(name), X[MOVING].astype(np.float64)
    left = np.sum((found.seen[:, MOVING] - x) ** 2, axis=2).mean(axis=0)
    shrunk = np.all(left < np.sum(x**2, axis=1))
    assert shrunk == COMPRESSORS[name].at(D).contraction


@every_compressor
def test_zero_stays_zero_and_a_nan_is_not_hidden(name):
    row, names = COMPRESSORS[name], [*VECTORS]
    seen = drawn(name).seen
    np.testing.assert_array_equal(seen[:, names.index("zero")], row.nothing)
    assert np.isnan(seen[:, names.index("all nan")]).any(axis=1).all()
    # What sends some of the numbers by lot may leave out the one that is none.
    if not row.lot:
        assert np.isnan(seen[:, names.index("one nan"), 3]).all()


@every_compressor
def test_the_plain_call_agrees_and_is_float32_whatever_it_is_given(name):
    case, found = COMPRESSORS[name].at(D), drawn(name)
    plain = case.apply(keys()[0], jnp.asarray(X[0]))
    np.testing.assert_allclose(found.seen[0, 0], plain, rtol=1e-5)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        given = jax.ShapeDtypeStruct((D,), dtype)
        said = jax.eval_shape(case.apply, KEY, given)
        assert (said.shape, said.dtype) == ((D,), jnp.float32)


@every_compressor
def test_one_number_arrives_as_it_is(name):
    row = COMPRESSORS[name]
    code = row.at(1).compress(KEY, jnp.float32([-1.75]))
    data = wire.encode(row.at(1).fields(1), code)
    assert len(data) == math.ceil(row.at(1).bits(1) / 8)
    received = row.at(1).expand(code, 1)
    np.testing.assert_allclose(received, -row.nothing or -1.75, rtol=1e-6)


def test_a_nan_among_many_numbers_is_not_hidden():
    many = np.where(np.arange(5000) == 3, np.nan, 1).astype(np.float32)
    assert np.isnan(compressors.nearest(4).apply(KEY, many)).all()


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ValueError, lambda: compressors.random_k(65).bits(64)),
        (ValueError, lambda: compressors.qsgd(2**24)),
        (ValueError, lambda: compressors.top_k(33).apply(KEY, X[0, :32])),
        (ValueError, lambda: compressors.then(
            compressors.sign(), compressors.top_k(3)).bits(D)),
    ],
)  # fmt: skip
def test_what_cannot_be_compressed_is_refused(error, call):
    with pytest.raises(error):
        call()


def test_the_most_levels_keep_the_sign_of_the_largest_number():
    x, levels = jnp.array([1.0, 0.5, -0.25, -1.0]), 2**24 - 1
    for one in compressors.nearest(levels), compressors.qsgd(levels):
        np.testing.assert_allclose(one.apply(KEY, x), x, atol=1e-6)
