"""AMSGrad as the paper prints it, how optax's differs, and Adam with a scalar."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import transforms

GRADIENTS = (1.0, 0.1, 0.0)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (transforms.paper_amsgrad, [0.96837723, 0.93689582, 0.90856254]),
        (optax.amsgrad, [0.99, 0.98473684, 0.98141581]),
    ],
)
def test_three_steps_are_those_of_the_formula(make, expected):
    tx, params = make(0.01), jnp.float32(1.0)
    state = tx.init(params)
    for gradient, value in zip(GRADIENTS, expected, strict=True):
        updates, state = tx.update(jnp.float32(gradient), state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params, value, rtol=1e-5)


def test_scalar_adam_is_adam_where_all_squares_are_equal_and_scales_elsewhere():
    scalar, adam = transforms.scalar_adam(0.01), optax.adam(0.01)
    params = {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}
    mine, whole = scalar.init(params), adam.init(params)
    for size in (1.0, -0.5, 2.0):
        gradient = jax.tree.map(lambda leaf, s=size: leaf + s, params)
        (one, mine), (other, whole) = (
            tx.update(gradient, state) for tx, state in ((scalar, mine), (adam, whole))
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), one, other)
    # Of unlike numbers a step keeps the proportions of the gradient, which Adam loses.
    first, _ = scalar.update(jnp.array([3.0, -1.0]), scalar.init(jnp.zeros(2)))
    np.testing.assert_allclose(first, [-0.01 * 3 / 5**0.5, 0.01 / 5**0.5], rtol=1e-5)
