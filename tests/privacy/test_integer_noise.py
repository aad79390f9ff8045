"""Draws of integer noise have the chances of their tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fl_sketch.core import chacha
from fl_sketch.privacy import integer_noise, integer_tables
from fl_sketch.privacy.lattice import KINDS
from tests.simulation import compiled

KEY = chacha.key_of(bytes(range(32)))
SCALES = (0.5, 5.0, 100.0, 1000.0, 2.0**14)
BLOCK = 2**20


def distribution(kind, variance):
    weights = integer_tables.weights(kind, variance)
    return np.array([weight / 2**integer_tables.CHANCE for weight in weights])


def chance(sizes, chances, cells=200):
    """Returns the p value of sizes in cells that are about equally likely."""
    below = np.cumsum(chances)
    ends = np.unique(np.searchsorted(below, np.linspace(0, 1, cells + 1)[1:-1]))
    expected = np.diff(np.concatenate([[0], below[ends], [1]]))
    counted = np.bincount(np.searchsorted(ends, sizes), minlength=expected.size)
    many = expected * sizes.size > 10
    few = [counted[~many].sum()], [expected[~many].sum() * sizes.size + 1e-9]
    counted = np.concatenate([counted[many], few[0]])
    expected = np.concatenate([expected[many] * sizes.size, few[1]])
    return stats.chisquare(counted, expected * counted.sum() / expected.sum()).pvalue


def drawn(kind, variance, blocks, make=integer_noise.noise, block=BLOCK):
    draw = compiled(lambda key: make(key, (block,), kind, variance))
    keys = [jax.random.fold_in(KEY, block) for block in range(blocks)]
    return np.concatenate([np.asarray(draw(key)) for key in keys]).astype(np.int64)


def fits(numbers, kind, variance):
    chances = distribution(kind, variance)
    true = np.sum(chances * np.arange(chances.size) ** 2.0)
    error = np.sqrt(2 / numbers.size)
    return (
        chance(np.abs(numbers), chances) > 1e-4
        and abs(np.mean(numbers**2) / true - 1) < 5 * error
        and abs(np.mean(np.sign(numbers))) < 5 / np.sqrt(numbers.size)
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_numbers_fit_their_table(kind, scale):
    assert fits(drawn(kind, scale**2, 1), kind, scale**2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "scale"), [("skellam", SCALES[0]), ("discrete_gaussian", SCALES[-1])]
)
def test_many_millions_do_and_have_the_variance_to_a_thousandth(kind, scale):
    numbers = drawn(kind, scale**2, 32)
    assert fits(numbers, kind, scale**2)
    chances = distribution(kind, scale**2)
    true = np.sum(chances * np.arange(chances.size) ** 2.0)
    assert np.mean(numbers**2) / true == pytest.approx(1, abs=1e-3)


def by_jax(key, shape, kind, variance):
    del kind
    first, second = jax.random.split(jax.random.key(jax.random.bits(key)))
    halves = [jax.random.poisson(k, variance / 2, shape) for k in (first, second)]
    return halves[0] - halves[1]


MISTAKES = {
    "differences of jax.random.poisson": (by_jax, 1e6),
    "half the variance": (
        lambda *given: integer_noise.noise(*given[:3], given[3] / 2),
        1e4,
    ),
    "one in twenty without its sign": (
        lambda key, *given: jnp.where(
            jax.random.uniform(jax.random.fold_in(key, 9), given[0]) < 0.05,
            abs(integer_noise.noise(key, *given)),
            integer_noise.noise(key, *given),
        ),
        1e4,
    ),
    "even numbers only": (
        lambda *given: 2 * integer_noise.noise(*given[:3], given[3] / 4),
        25.0,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_do_not_fit(name):
    make, variance = MISTAKES[name]
    numbers = drawn("skellam", variance, 1, make, block=BLOCK // 8)
    assert not fits(numbers, "skellam", variance)


def test_each_number_of_a_batch_is_drawn_as_if_it_were_alone():
    keys = jax.random.split(KEY, 3)

    def draw(key):
        return integer_noise.noise(key, (2, 50), "discrete_gaussian", 30.0)

    together = compiled(jax.vmap(draw))(keys)
    for key, numbers in zip(keys, together, strict=True):
        np.testing.assert_array_equal(compiled(draw)(key), numbers)


@pytest.mark.parametrize("rest", [0, 2**32 - 1])
def test_further_bits_decide_where_the_first_are_equal(rest, monkeypatch):
    table = integer_tables.table("skellam", 4.0)
    column = int(np.flatnonzero(table.others != np.arange(table.others.size))[0])
    bits = (table.others.size - 1).bit_length()
    where = column << (31 - bits)

    def words(key, shape, dtype):
        del key
        if shape[0] == 3:
            return jnp.full(shape, rest, dtype)
        first = [np.full(shape[1], where), np.full(shape[1], table.limits[0, column])]
        return jnp.array(first, dtype)

    monkeypatch.setattr(integer_noise.jax.random, "bits", words)
    with jax.disable_jit():
        (number,) = integer_noise.drawn(KEY, 1, table).tolist()
    assert number == (column if rest == 0 else table.others[column])
