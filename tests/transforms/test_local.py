"""Local work, called as an engine calls it for one client."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Server
from fl_sketch.transforms import local


def test_steps_on_one_batch_have_keys_of_their_own():
    def loss(x, batch, key):
        return jnp.sum(batch * x * jax.random.normal(key, x.shape))

    server, keys = Server(jnp.zeros(3), (), (), 0), round_keys(jax.random.key(0), 0, 1)
    first, both = (
        local.full_gradient_steps(loss, optax.sgd(1.0), steps=steps)
        .run(server, (), jnp.ones((1, 3)), keys)
        .update
        for steps in (1, 2)
    )
    assert not np.isclose(both - first, first).any()
