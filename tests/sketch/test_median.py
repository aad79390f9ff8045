"""The sorting network sorts, so its middle is the median."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.sketch.median import comparators, median

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("count", range(1, 12))
def test_network_sorts_every_sequence_of_zeros_and_ones(count):
    # Which means that it sorts everything (Knuth's 0-1 principle).
    for bits in itertools.product((0, 1), repeat=count):
        values = list(bits)
        for low, high in comparators(count):
            assert low < high
            if values[low] > values[high]:
                values[low], values[high] = values[high], values[low]
        assert values == sorted(bits)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 20, 50])
def test_median_is_numpys(count):
    rows = np.random.default_rng(count).normal(size=(count, 7)).astype(np.float32)
    np.testing.assert_allclose(
        median([jnp.asarray(row) for row in rows]), np.median(rows, axis=0), rtol=1e-6
    )


def test_nan_in_any_row_is_seen():
    rows = [jnp.array([1.0]), jnp.array([2.0]), jnp.array([jnp.nan])]
    for order in itertools.permutations(rows):
        assert jnp.isnan(median(order)).all()
