"""What bounds leave alone and refuse; that they hold is a law, in tests/laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.privacy import clipping

pytestmark = pytest.mark.fast

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
every_bound = pytest.mark.parametrize("make", BOUNDS.values(), ids=BOUNDS)


def message():
    return {"w": jnp.arange(12.0).reshape(4, 3) - 5, "b": jnp.array(2.0)}


def test_clipping_does_not_touch_what_is_short_enough():
    for limit in (1e3, jnp.float32(1e3), float("inf")):
        clipped, _ = clipping.clip(limit).apply(message())
        for a, b in zip(
            jax.tree.leaves(clipped), jax.tree.leaves(message()), strict=True
        ):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
@every_bound
def test_a_limit_that_is_none_is_refused(make, limit):
    with pytest.raises(ValueError, match="threshold="):
        make(limit)


def test_examples_are_clipped_one_by_one():
    params = jnp.zeros(2)
    batch = jnp.array([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0]])

    def loss(params, batch):
        return jnp.mean(batch @ params) + 3

    total, value, dropped = clipping.clipped_gradient_sum(loss, params, batch, 1.0)
    np.testing.assert_allclose(total, [0.9, 1.2], rtol=1e-6)
    assert float(dropped) == 1 and float(value) == 3.0


def test_noise_that_a_count_alone_would_take_cannot_be_split():
    assert clipping.split_noise(0.0, 5.0) == 0.0
    for z in (10.0, 11.0):
        with pytest.raises(ValueError, match=f"noise_multiplier={z}"):
            clipping.split_noise(z, 5.0)
