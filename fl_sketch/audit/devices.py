"""Searches on all devices, each through its share one by one."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fl_sketch.engine.mesh import AXIS, rows


def on_all(function: Callable, mesh: Mesh) -> Callable:
    """Returns a function over a leading axis of all arguments, on all devices.

    Each device goes through its share one by one: searches take different numbers of
    steps, and a CPU has nothing to gain from batches.

    Args:
      function: a function of one entry of each argument.
    """

    def over(*arguments):
        share = jax.shard_map(
            lambda *share: jax.lax.map(lambda entry: function(*entry), share),
            mesh=mesh,
            in_specs=P(AXIS),
            out_specs=P(AXIS),
            check_vma=False,  # optax's line search is not made for it
        )
        count = len(jax.tree.leaves(arguments)[0])
        extra = -count % rows(mesh)

        def padded(leaf):
            return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], extra, axis=0)])

        results = share(*jax.tree.map(padded, arguments))
        return jax.tree.map(lambda leaf: leaf[:count], results)

    return over
