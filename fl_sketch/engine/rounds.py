"""Many rounds in one program: cohorts are drawn, rounds played, reports kept."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core.protocols import Algorithm, Key, Roots
from fl_sketch.engine.clients import Fetch, traced
from fl_sketch.engine.cohort import Cohort, everyone, of_round
from fl_sketch.engine.mesh import compiler_options, mesh_over
from fl_sketch.engine.round import Report, State, make_round

Advance = Callable[[State, int], tuple[State, Report]]


def with_everyone(
    algorithm: Algorithm, fetch: Fetch, population: int, *, chunk: int = 1
) -> Callable:
    """Returns `(state, key) -> (state, report)`, a round of all clients, not jitted.

    It runs on one device: for small problems inside programs of one's own. Of what
    `fetch` is given only the client's number says anything.

    Args:
      algorithm: the work of clients and server.
      fetch: a function as `make_round` has it.
      population: the number of clients.
      chunk: the number of clients that work at a time.
    """
    mesh = mesh_over(jax.devices()[:1])
    one_round = make_round(algorithm, fetch, mesh, chunk=chunk)
    cohort = everyone(population)(jax.random.key(0))
    return lambda state, key: one_round(state, key, cohort, None, None)


def compile_rounds(
    rounds: Callable[..., tuple[State, Report]],
    mesh: jax.sharding.Mesh,
    *,
    state: State,
    key: Roots,
    data: Any,
) -> Advance:
    """Returns `advance`, for rounds on data that lie on the devices.

    Args:
      rounds: `(state, key, data, count) -> (state, reports)`.
      mesh: the devices.
      state: the state, for its shapes and shardings.
      key: the roots of the run, placed.
      data: the data on the devices.
    """
    as_before = jax.tree.map(lambda leaf: leaf.sharding, state)
    out = as_before, NamedSharding(mesh, P())
    rounds = jax.jit(rounds, donate_argnums=0, out_shardings=out)
    rounds = rounds.lower(state, key, data, 0).compile(compiler_options(mesh))
    return lambda state, count: rounds(state, key, data, count)


def run_rounds(
    one_round: Callable,
    sampler: Callable[[Key], Cohort],
    state: State,
    key: Key | Roots,
    data,
    count: jax.typing.ArrayLike,
    *,
    most: int,
) -> tuple[State, Report]:
    """Runs several rounds in one program; jit this, with the state donated.

    How many may be traced: one program then serves blocks of all lengths, and how a
    run is cut into blocks cannot change a bit of it.

    Args:
      one_round: `(state, key, cohort, data) -> (state, report)`, of `make_round`.
      sampler: the sampler of the cohorts.
      state: the state before the first of these rounds.
      key: the key of the whole run, or its roots.
      data: the data that `fetch` reads.
      count: the number of rounds, at most `most`.
      most: the number of rounds whose reports there is room for.

    Returns:
      The state after them, and reports along a leading axis of `most` places, the
      first `count` of which say something.
    """

    def step(state):
        cohort = of_round(sampler, key, state.server.round)
        return one_round(state, key, cohort, data)

    play, (_, shapes) = traced(step, state)

    def body(number, carry):
        state, reports = carry
        state, report = play(state)
        return state, jax.tree.map(
            lambda all_rounds, one: all_rounds.at[number].set(one), reports, report
        )

    reports = jax.tree.map(lambda one: jnp.zeros((most, *one.shape), one.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, reports))
