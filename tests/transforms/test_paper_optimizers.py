"""AMSGrad as the paper prints it, and how optax's differs."""

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
