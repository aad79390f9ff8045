"""Whatever a message is, what is left of it is no longer than C."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.privacy import clipping

pytestmark = pytest.mark.fast

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
every_bound = pytest.mark.parametrize("make", BOUNDS.values(), ids=BOUNDS)


def message(scale=1.0, dtype=jnp.float32):
    tree = {"w": jnp.arange(12.0).reshape(4, 3) - 5, "b": jnp.array(2.0)}
    return jax.tree.map(lambda leaf: (scale * leaf).astype(dtype), tree)


def length(tree):
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return np.linalg.norm(np.concatenate(leaves))


@every_bound
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-3, 1.0, 1e5, 1e25, 1e37])
@pytest.mark.parametrize("limit", [1e-4, 300.0])
def test_no_message_is_longer_than_the_limit(make, dtype, scale, limit):
    bounded = jax.jit(make(limit).apply)(message(scale, dtype))
    assert length(bounded) <= limit * (1 + 1e-5)


@every_bound
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_the_direction_stays(make, scale):
    bounded = make(0.5).apply(message(scale))
    ratio = bounded["w"] / (message(scale)["w"] / scale)
    finite = np.asarray(ratio)[np.isfinite(ratio)]
    np.testing.assert_allclose(finite, finite[0], rtol=1e-4)


def test_clipping_does_not_touch_what_is_short_enough():
    for limit in (1e3, jnp.float32(1e3), float("inf")):
        clipped = clipping.clip(limit).apply(message())
        for a, b in zip(
            jax.tree.leaves(clipped), jax.tree.leaves(message()), strict=True
        ):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e25])
def test_normalising_gives_everything_the_same_length(scale):
    bounded = clipping.normalise(7.0).apply(message(scale))
    assert length(bounded) == pytest.approx(7.0, rel=1e-5)


@every_bound
def test_zero_stays_zero(make):
    bounded = make(3.0).apply(message(0.0))
    assert length(bounded) == 0


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_not_finite_is_rejected(bad):
    broken = message()
    broken["w"] = broken["w"].at[1, 2].set(bad)
    left, rejected = jax.jit(clipping.reject)(broken)
    assert length(left) == 0 and float(rejected) == 1.0
    left, rejected = clipping.reject(message())
    assert length(left) == length(message()) and float(rejected) == 0.0


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


def test_noise_is_split_between_messages_and_their_count():
    assert clipping.split_noise(1.0, 5.0) == pytest.approx(1.0050378, abs=1e-7)
    assert clipping.split_noise(0.0, 5.0) == 0.0
    for z in (10.0, 11.0):
        with pytest.raises(ValueError, match=f"noise_multiplier={z}"):
            clipping.split_noise(z, 5.0)
