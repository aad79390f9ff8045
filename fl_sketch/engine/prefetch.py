"""Rounds on data that stay on the host.

While the devices work on a round, a thread gathers the batches of the next and sends
them, so that devices hold the batches of two rounds and no data set. Which batches
these are follows from the run's roots and the round's number alone: a batch that was
made too early, or twice, is the same batch.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core.keys import batch_key
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.data import streamed
from fl_sketch.engine.cohort import Cohort, of_round, padded
from fl_sketch.engine.mesh import AXIS
from fl_sketch.engine.round import Report, State


def drawing(
    sampler: Callable[[Key], Cohort], *, multiple: int, steps: int, batch: int
) -> Callable[[Key | Roots, jax.Array, jax.typing.ArrayLike], jax.Array]:
    """Returns `(key, starts, number) -> places` of a round's batches, not jitted.

    Args:
      sampler: the sampler of the cohorts; weights do not matter.
      multiple: a divisor of the number of places, as the engine fills them up.
    """

    def places(key, starts, number):
        ids = padded(of_round(sampler, key, number), multiple).ids
        keys = jax.vmap(lambda client: batch_key(key, number, client))(ids)
        return streamed.places(starts, keys, ids, steps=steps, batch=batch)

    return places


def batches_on_devices(
    places: Callable[[Key | Roots, jax.Array, jax.typing.ArrayLike], jax.Array],
    mesh: jax.sharding.Mesh,
    key: Roots,
    data: streamed.OnHost,
) -> tuple[Callable[[int], jax.Array], Callable[[jax.Array], Any], Any]:
    """Returns what draws the places of a round, what gathers them, and the shapes.

    Args:
      places: a function as `drawing` makes it.
      key: the roots of the run, placed.
    """
    # Every process draws the cohorts for itself, on one device.
    alone = SingleDeviceSharding(mesh.local_devices[0])
    own_key = jax.tree.map(
        lambda root: jax.device_put(root.addressable_data(0), alone), key
    )
    own_starts = jax.device_put(data.starts, alone)
    draw = jax.jit(places).lower(own_key, own_starts, 0).compile()
    spread = NamedSharding(mesh, P(AXIS))
    shape = jax.eval_shape(places, own_key, own_starts, 0).shape
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (*shape, *leaf.shape[1:]),
            jax.dtypes.canonicalize_dtype(leaf.dtype),
            sharding=spread,
        ),
        data.examples,
    )
    return (
        lambda number: draw(own_key, own_starts, number),
        lambda drawn: streamed.gather(data, np.asarray(drawn), spread),
        shapes,
    )


def advancing(
    draw: Callable[[int], jax.Array],
    gather: Callable[[jax.Array], Any],
    one_round: Callable[[State, Any], tuple[State, Report]],
) -> Callable[[State, int, int], tuple[State, Report]]:
    """Returns `advance(state, done, count)`, which gathers ahead in a thread.

    Reports come back as numpy arrays along a leading axis of `count`, at least one.

    Args:
      draw: `(number) -> places` of a round, on the device.
      gather: `(places) -> batches`.
      one_round: `(state, batches) -> (state, report)`, the state being used up.
    """
    thread = ThreadPoolExecutor(1, "gather")
    ahead: dict[int, Future] = {}  # of one round, also from one call to the next

    def batches_of(number: int) -> Future:
        future = ahead.pop(number, None)
        ahead.clear()
        return future or thread.submit(gather, draw(number))

    def advance(state, done, count):
        reports = []
        for number in range(done, done + count):
            batches = batches_of(number).result()
            # Before the round: a device takes programs in the order they come.
            ahead[number + 1] = thread.submit(gather, draw(number + 1))
            state, report = one_round(state, batches)
            del batches
            # Collectives of several calls in flight can deadlock on few cores.
            jax.block_until_ready(state)
            reports.append(jax.device_get(report))
        return state, jax.tree.map(lambda *leaves: np.concatenate(leaves), *reports)

    return advance
