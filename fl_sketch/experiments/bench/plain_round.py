"""FedAvg written by hand for one loss, without the engine: the unit of its times.

It has the engine's form: devices share the clients, each device visits its own in a
scan, and one `psum` makes the mean. What the engine takes beyond this is the price of
being general: keys, weights, client states, channels, reports.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from fl_sketch.engine import AXIS


def make_plain_round(
    loss: Callable,
    mesh: jax.sharding.Mesh,
    *,
    rate: float,
    steps: int,
    full_batch: bool,
    chunk: int,
) -> Callable:
    """Returns `round(params, data, plan, weights) -> params`, not jitted.

    The cohort must be a multiple of devices times chunk; padded places get weight zero.
    The server's step has size one: the new model is the mean of the clients'.

    Args:
      loss: `(params, (inputs, targets)) -> scalar`.
      full_batch: whether all steps see the first batch of the plan.
      chunk: the number of clients that a device works on at a time, by vmap.
    """

    def train(params, data, rows):
        """Returns one client's model; rows are (batches, examples of a batch)."""

        def step(model, batch):
            grads = jax.grad(loss)(model, batch)
            return jax.tree.map(lambda x, g: x - rate * g, model, grads), None

        if full_batch:
            batch = jax.tree.map(lambda leaf: leaf[rows[0]], data)
            repeat = lambda model, _: step(model, batch)  # noqa: E731
            return jax.lax.scan(repeat, params, length=steps)[0]
        batches = jax.tree.map(lambda leaf: leaf[rows], data)
        return jax.lax.scan(step, params, batches)[0]

    def visit(params, data, total, places):
        rows, weights = places
        if chunk == 1:
            model = train(params, data, rows[0])
            add = lambda t, x: t + weights[0] * x  # noqa: E731
            return jax.tree.map(add, total, model), None
        models = jax.vmap(train, in_axes=(None, None, 0))(params, data, rows)
        add = lambda t, x: t + jnp.tensordot(weights, x, 1)  # noqa: E731
        return jax.tree.map(add, total, models), None

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P(), P(AXIS), P(AXIS)), out_specs=P()
    )
    def one_round(params, data, plan, weights):
        # Each device differentiates its own copy: otherwise jax sums the gradients.
        copies = jax.tree.map(lambda x: jax.lax.pcast(x, AXIS, to="varying"), params)
        places = jax.tree.map(
            lambda leaf: leaf.reshape(-1, chunk, *leaf.shape[1:]), (plan, weights)
        )
        zeros = jax.tree.map(jnp.zeros_like, copies)
        total, _ = jax.lax.scan(functools.partial(visit, copies, data), zeros, places)
        count = jax.lax.psum(weights.sum(), AXIS)
        return jax.tree.map(lambda t: jax.lax.psum(t, AXIS) / count, total)

    return one_round
