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
from fl_sketch.engine.mesh import AXIS, compiler_options
from fl_sketch.engine.round import Report, State
from fl_sketch.engine.rounds import Advance, run_rounds


def drawing(
    sampler: Callable[[Key], Cohort], *, multiple: int, steps: int, batch: int
) -> Callable[[Key | Roots, jax.Array, jax.typing.ArrayLike], jax.Array]:
    """Returns `(key, starts, number) -> places`, not jitted.

    Args:
      sampler: the sampler of the cohorts; weights do not matter.
      multiple: a divisor of the number of places, as the engine fills them up.
      steps: the number of batches that a client needs.
      batch: the number of examples in each.
    """

    def places(key, starts, number):
        cohort = of_round(sampler, key, number)
        ids = padded(cohort, multiple).ids
        keys = jax.vmap(lambda client: batch_key(key, number, client))(ids)
        return streamed.places(starts, keys, ids, steps=steps, batch=batch)

    return places


def on_batches(one_round: Callable, people_of: Callable) -> Callable:
    """Returns `(state, key, (batches, starts), count) -> (State, Report)`, not jitted.

    Args:
      one_round: a round made by `make_round`, with a fetch that returns the plan.
      people_of: `(starts) -> sampler` of the cohorts.
    """

    def on_these(state, key, cohort, batches):
        return one_round(state, key, cohort, None, batches)

    def rounds(state, key, sent, count):
        people = people_of(sent[1])
        return run_rounds(on_these, people, state, key, sent[0], count, most=1)

    return rounds


def compile_rounds(
    places: Callable[[Key | Roots, jax.Array, jax.typing.ArrayLike], jax.Array],
    one_round: Callable[..., tuple[State, Report]],
    mesh: jax.sharding.Mesh,
    *,
    state: State,
    key: Roots,
    data: streamed.OnHost,
) -> Advance:
    """Returns `advance` with its programs compiled.

    Args:
      places: a function as `drawing` makes it.
      one_round: a function as `on_batches` makes it, for a count of one.
      mesh: the devices.
      state: the state, for its shapes and shardings.
      key: the roots of the run, placed.
      data: the data on the host.
    """
    # Every process draws the cohorts for itself, on one device.
    alone, same = SingleDeviceSharding(mesh.local_devices[0]), NamedSharding(mesh, P())
    own_key = jax.tree.map(
        lambda root: jax.device_put(root.addressable_data(0), alone), key
    )
    own_starts = jax.device_put(data.starts, alone)
    draw = jax.jit(places).lower(own_key, own_starts, 0).compile()
    spread = NamedSharding(mesh, P(AXIS))
    starts = jax.device_put(data.starts, same)
    shape = jax.eval_shape(places, own_key, own_starts, 0).shape
    sent = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (*shape, *leaf.shape[1:]),
            jax.dtypes.canonicalize_dtype(leaf.dtype),
            sharding=spread,
        ),
        data.examples,
    )

    as_before = jax.tree.map(lambda leaf: leaf.sharding, state)
    one_round = jax.jit(one_round, donate_argnums=0, out_shardings=(as_before, same))
    lowered = one_round.lower(state, key, (sent, starts), 1)
    compiled = lowered.compile(compiler_options(mesh))
    return advancing(
        lambda number: draw(own_key, own_starts, number),
        lambda places: streamed.gather(data, np.asarray(places), spread),
        lambda state, batches: compiled(state, key, (batches, starts), 1),
    )


def advancing(
    draw: Callable[[int], jax.Array],
    gather: Callable[[jax.Array], Any],
    one_round: Callable[[State, Any], tuple[State, Report]],
) -> Advance:
    """Returns `advance(state, count)`, which runs `count` rounds.

    Args:
      draw: `(round's number) -> places`, on the device.
      gather: `(places) -> batches`, in a thread of its own.
      one_round: `(state, batches) -> (state, report)`, the state being used up.

    Reports come back as numpy arrays along a leading axis of `count`, at least one.
    """
    thread = ThreadPoolExecutor(1, "gather")
    ahead: dict[int, Future] = {}  # of one round, also from one call to the next

    def batches_of(number: int) -> Future:
        found = ahead.pop(number, None)
        ahead.clear()
        return found or thread.submit(gather, draw(number))

    def advance(state, count):
        reports, first = [], int(state.server.round)
        for number in range(first, first + count):
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
