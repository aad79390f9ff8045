"""Rounds on data that stay on the host.

While the devices work on a round, a thread gathers the batches of the next and sends
them, so that devices hold the batches of two rounds and no data set. Which batches
these are follows from the run's roots and the round's number alone: a batch that was
made too early, or twice, is the same batch.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import engine
from fl_sketch.data import streamed
from fl_sketch.data.examples import Examples
from fl_sketch.engine import AXIS
from fl_sketch.engine.cohort import Sampler, padded
from fl_sketch.experiment import memory
from fl_sketch.keys import batch_key, cohort_key
from fl_sketch.protocols import Key, Roots

FORMS = ("resident", "streamed")
SHARE = 0.5  # of a device's free memory, that a resident data set may take
HOST_LIMIT = 2 * 2**30  # bytes that data may take on all devices of a host's memory

Advance = Callable[[engine.State, int], tuple[engine.State, engine.Report]]


class Streamed(NamedTuple):
    """What a program has besides, if its data are streamed.

    Attributes:
      data: `(seed) -> OnHost`, the training data as this seed shares them out.
      places: `(key, starts, number) -> places`, what to gather for a round.
      round: `(numbers, state, key, (batches, starts), count) -> (State, Report)`,
        one round on its batches, for a count of one.
    """

    data: Callable[[int], streamed.OnHost]
    places: Callable[[Key | Roots, jax.Array, jax.typing.ArrayLike], jax.Array]
    round: Callable[..., tuple[engine.State, engine.Report]]


def form(wanted: str, examples: Examples, mesh: jax.sharding.Mesh) -> str:
    """Returns the one of `FORMS` in which to keep these examples."""
    if wanted in FORMS:
        return wanted
    size = sum(leaf.nbytes for leaf in examples)
    least = room(mesh.local_devices)
    if jax.process_count() > 1:  # all must run the same program
        least = multihost_utils.process_allgather(np.float32(least)).min()
    return "streamed" if size > least else "resident"


def room(devices) -> float:
    """Returns how many bytes of data each of this host's devices may hold."""
    own = memory.of_devices(devices)
    return HOST_LIMIT / len(devices) if own is None else SHARE * own


def drawing(
    sampler: Sampler, *, multiple: int, steps: int, batch: int
) -> Callable[[Key | Roots, jax.Array, jax.typing.ArrayLike], jax.Array]:
    """Returns `(key, starts, number) -> places`, not jitted.

    Args:
      sampler: of the cohorts; weights do not matter.
      multiple: of which the number of places is one, as the engine fills them up.
      steps: how many batches a client needs.
      batch: how many examples each.
    """

    def places(key, starts, number):
        cohort = sampler(cohort_key(key, number))
        ids = padded(cohort, multiple).ids
        keys = jax.vmap(lambda client: batch_key(key, number, client))(ids)
        return streamed.places(starts, keys, ids, steps=steps, batch=batch)

    return places


def on_batches(round_of: Callable, people_of: Callable) -> Callable:
    """Returns `Streamed.round`, not jitted.

    Args:
      round_of: `(numbers) -> round` of `engine.make_round`, with a fetch that returns
        the plan where there is one.
      people_of: `(starts) -> sampler` of the cohorts.
    """

    def rounds(numbers, state, key, sent, count):
        one_round, (batches, starts) = round_of(numbers), sent

        def on_these(state, key, cohort, batches):
            return one_round(state, key, cohort, None, batches)

        people = people_of(starts)
        return engine.run_rounds(on_these, people, state, key, batches, count, most=1)

    return rounds


def compile_rounds(
    program, numbers, state, key: Roots, data: streamed.OnHost
) -> Advance:
    """Returns `advance` with its programs compiled.

    Args:
      program: with its streamed parts.
      numbers: the continuous keys.
      state: its shapes and shardings.
      key: the roots of the run.
      data: made by `Streamed.data`.
    """
    parts, mesh = program.streamed, program.mesh
    # Every process draws the cohorts for itself, on one device.
    alone = SingleDeviceSharding(mesh.local_devices[0])
    own_key = jax.tree.map(
        lambda root: jax.device_put(root.addressable_data(0), alone), key
    )
    own_starts = jax.device_put(data.starts, alone)
    draw = jax.jit(parts.places).lower(own_key, own_starts, 0).compile()
    spread = NamedSharding(mesh, P(AXIS))
    starts = jax.device_put(data.starts, program.same)
    shape = jax.eval_shape(parts.places, own_key, own_starts, 0).shape
    sent = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (*shape, *leaf.shape[1:]),
            jax.dtypes.canonicalize_dtype(leaf.dtype),
            sharding=spread,
        ),
        data.examples,
    )

    def one_round(state, key, batches, starts, count):
        return parts.round(numbers, state, key, (batches, starts), count)

    one_round = jax.jit(one_round, donate_argnums=0, out_shardings=program.same)
    one_round = one_round.lower(state, key, sent, starts, 1).compile()
    return advancing(
        lambda number: draw(own_key, own_starts, number),
        lambda places: streamed.gather(data, np.asarray(places), spread),
        lambda state, batches: one_round(state, key, batches, starts, 1),
    )


def advancing(
    draw: Callable[[int], jax.Array],
    gather: Callable[[jax.Array], Any],
    one_round: Callable[[engine.State, Any], tuple[engine.State, engine.Report]],
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
