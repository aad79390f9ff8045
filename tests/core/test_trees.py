"""An update becomes one vector and comes back."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fl_sketch.core import trees

pytestmark = pytest.mark.fast

UPDATES = {
    "vector": jnp.arange(3.0),
    "scalar": jnp.float32(2),
    "leaves": {
        "w": jnp.arange(6.0).reshape(2, 3),
        "b": -jnp.ones(2),
        "c": jnp.ones(()),
    },
    "types": [jnp.ones(2, jnp.bfloat16), jnp.arange(3.0), jnp.ones(1, jnp.float16)],
    "halves": (jnp.ones(2, jnp.bfloat16), jnp.zeros((1, 1), jnp.bfloat16)),
    "numpy": [np.ones((2, 2), np.float32), np.zeros(0, np.float32)],
}


@pytest.mark.parametrize("name", UPDATES)
def test_the_vector_is_that_of_jax_and_comes_back(name):
    update = UPDATES[name]
    vector = trees.ravel(update)
    chex.assert_trees_all_equal(vector, ravel_pytree(update)[0])
    assert vector.dtype == ravel_pytree(update)[0].dtype
    back = trees.unraveler(update)(vector)
    chex.assert_trees_all_equal(back, update, strict=True)
