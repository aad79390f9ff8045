"""Rounds on data that stay on the host.

While the devices work on a round, a thread gathers the batches of the next and sends
them, so that devices hold the batches of two rounds and no data set. Batches are a
function of the run's roots and the round's number, whenever they are made.
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


def batches_on_devices(
    sampler: Callable[[Key], Cohort],
    mesh: jax.sharding.Mesh,
    key: Roots,
    data: streamed.OnHost,
    *,
    multiple: int,
    steps: int,
    batch: int,
) -> tuple[Callable[[Roots, int], jax.Array], Callable[[jax.Array], Any], Any]:
    """Returns `(key, number) -> places`, `(places) -> batches`, and batches' shapes.

    Args:
      sampler: of the cohorts, whose weights do not matter.
      multiple: the cohort's places are filled up to a multiple of this.
    """

    def places(key, starts, number):
        ids = padded(of_round(sampler, key, number), multiple).ids
        keys = jax.vmap(lambda client: batch_key(key, number, client))(ids)
        return streamed.places(starts, keys, ids, steps=steps, batch=batch)

    # Every process draws the cohorts itself, on one device.
    one_device = SingleDeviceSharding(mesh.local_devices[0])

    def here(key):
        return jax.tree.map(
            lambda root: jax.device_put(root.addressable_data(0), one_device), key
        )

    key = here(key)
    starts = jax.device_put(data.starts, one_device)
    draw = jax.jit(places).lower(key, starts, 0).compile()
    spread = NamedSharding(mesh, P(AXIS))
    shape = jax.eval_shape(places, key, starts, 0).shape
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (*shape, *leaf.shape[1:]),
            jax.dtypes.canonicalize_dtype(leaf.dtype),
            sharding=spread,
        ),
        data.examples,
    )
    return (
        lambda key, number: draw(here(key), starts, number),
        lambda drawn: streamed.gather(data, np.asarray(drawn), spread),
        shapes,
    )


def gathered_ahead(
    draw: Callable[[int], jax.Array],
    gather: Callable[[jax.Array], Any],
    one_round: Callable[[State, Any], tuple[State, Report]],
) -> Callable[[State, int], tuple[State, Report]]:
    """Returns `(state, number) -> (state, report)`, which gathers ahead in a thread.

    Args:
      draw: `(number) -> places` of a round, on the device.
      gather: `(places) -> batches`.
      one_round: `(state, batches) -> (state, report)`, which uses up the state.
    """
    thread = ThreadPoolExecutor(1, "gather")
    ahead: dict[int, Future] = {}  # of one round, kept between calls

    def on_batches(state, number):
        future = ahead.pop(number, None) or thread.submit(gather, draw(number))
        ahead.clear()
        batches = future.result()
        # Before the round: a device runs programs in the order of their calls.
        ahead[number + 1] = thread.submit(gather, draw(number + 1))
        state, report = one_round(state, batches)
        del batches, future
        # Collectives of several calls in flight can deadlock on few cores.
        return jax.block_until_ready(state), report

    return on_batches
