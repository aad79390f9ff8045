"""Signs, offsets and samples are what their definitions ask for."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fl_sketch.core import hashing

DRAWS = 200_000
KEYS = jax.random.key(11)


def signs_of(coordinates, rows):
    """Returns signs of shape (draws, rows, coordinates)."""
    index = jnp.asarray(coordinates, jnp.uint32)

    @jax.jit
    @jax.vmap
    def draw(key):
        seeds = hashing.sign_seeds(key, max(rows) + 1)
        masks = [hashing.sign_mask(seeds, index, row) for row in rows]
        return hashing.flip(jnp.ones(len(coordinates)), jnp.stack(masks))

    return np.asarray(draw(jax.random.split(KEYS, DRAWS)))


def largest_z(products):
    """Returns the largest mean in standard errors; signs have variance one."""
    return np.abs(products.mean(axis=0)).max() * DRAWS**0.5


def test_signs_are_balanced_and_independent_in_pairs_and_fours():
    # Neighbours, powers of two and their sums: where weak mixers show.
    coordinates = [0, 1, 2, 3, 64, 65, 2**20, 2**20 + 64, 2**24 + 1, 7654321]
    signs = signs_of(coordinates, rows=[0])[:, 0]
    assert largest_z(signs) < 4.5
    for size in (2, 4):
        for chosen in itertools.combinations(range(len(coordinates)), size):
            assert largest_z(np.prod(signs[:, chosen], axis=1)) < 4.5, chosen


def test_rows_have_independent_signs():
    rows = [0, 1, 4, 16, 31, 32, 40]
    signs = signs_of([0, 5, 1000], rows)
    assert largest_z(signs) < 4.5
    for one, other in itertools.combinations(range(len(rows)), 2):
        assert largest_z(signs[:, one] * signs[:, other]) < 4.5


def uniformity(numbers, cells):
    return stats.chisquare(np.bincount(numbers, minlength=cells)).pvalue


@pytest.mark.parametrize(("per_row", "modulus"), [(1, 10), (3, 7), (4, 4)])
def test_offsets_are_uniform_and_distinct_within_a_row(per_row, modulus):
    drawn = np.asarray(hashing.offsets(KEYS, (40_000, 2, per_row), modulus))
    assert drawn.min() >= 0 and drawn.max() < modulus
    ordered = np.sort(drawn, axis=-1)
    assert np.all(ordered[..., 1:] != ordered[..., :-1])
    counts = np.bincount(drawn.ravel(), minlength=modulus)
    # Members of one draw exclude each other: counts vary by a factor less.
    expected = drawn.size / modulus
    spread = np.sqrt(expected * (1 - per_row / modulus)) if per_row < modulus else 1e-9
    assert np.all(np.abs(counts - expected) <= 4 * spread)


@pytest.mark.parametrize("d", [1, 2, 9, 4096, 4097, 10_000])
def test_samples_are_without_replacement(d):
    for count in {min(d, 50), d}:
        sample = hashing.sample_without_replacement(jax.random.key(d), count, d)
        assert np.unique(sample).size == count
        assert int(sample.min()) >= 0 and int(sample.max()) < d


@pytest.mark.parametrize("d", [8, 5000, 65_536])
def test_samples_are_uniform_alone_and_in_pairs(d):
    draw = jax.vmap(lambda key: hashing.sample_without_replacement(key, 2, d))
    pairs = np.asarray(jax.jit(draw)(jax.random.split(KEYS, DRAWS)))
    cells = 8
    coarse = pairs.astype(np.int64) * cells // d
    assert uniformity(coarse[:, 0], cells) > 1e-4
    assert uniformity(coarse[:, 1], cells) > 1e-4
    both = np.bincount(coarse @ [cells, 1], minlength=cells**2).reshape(cells, cells)
    sizes = np.bincount(np.arange(d) * cells // d)
    expected = np.outer(sizes, sizes) - np.diag(sizes)  # never the same one twice
    expected = expected / expected.sum() * DRAWS
    possible = expected > 0
    assert both[~possible].sum() == 0
    assert stats.chisquare(both[possible], expected[possible]).pvalue > 1e-4
