"""Many rounds in one program: cohorts are drawn, rounds played, reports kept."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.round import Report, State
from fl_sketch.keys import cohort_key
from fl_sketch.protocols import Key, Roots


def run_rounds(
    one_round: Callable,
    sampler: Sampler,
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
      sampler: of the cohorts.
      state: before the first of these rounds.
      key: of the whole run, or its roots.
      data: what `fetch` reads.
      count: how many, at most `most`.
      most: of how many rounds there is room for reports.

    Returns:
      The state after them, and reports along a leading axis of `most` places, the
      first `count` of which say something.
    """

    def step(state):
        cohort = sampler(cohort_key(key, state.server.round))
        return one_round(state, key, cohort, data)

    def body(number, carry):
        state, reports = carry
        state, report = step(state)
        return state, jax.tree.map(
            lambda all_rounds, one: all_rounds.at[number].set(one), reports, report
        )

    reports = jax.tree.map(
        lambda one: jnp.zeros((most, *one.shape), one.dtype),
        jax.eval_shape(lambda: step(state)[1]),
    )
    return jax.lax.fori_loop(0, count, body, (state, reports))
