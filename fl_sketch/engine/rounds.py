"""Many rounds in one program: cohorts are drawn, rounds played, reports kept."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import secret
from fl_sketch.core.constants import as_argument, jitted, trees_of
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.data import batches as client_batches
from fl_sketch.data import streamed
from fl_sketch.engine import prefetch
from fl_sketch.engine.clients import traced
from fl_sketch.engine.cohort import Cohort, of_round
from fl_sketch.engine.compiling import compile_program
from fl_sketch.engine.experiment import Experiment, Hyperparameters
from fl_sketch.engine.mesh import placed, rows
from fl_sketch.engine.programs import fingerprint
from fl_sketch.engine.round import Report, State, make_round

Advance = Callable[[State, int, int], tuple[State, Report]]
Seal = Callable[[str], Roots]  # `(fingerprint of the program) -> roots`


def starting(experiment: Experiment) -> Callable[[Key], State]:
    """Returns `(public root) -> state` before the first round, on the devices."""

    def start(key):
        return experiment.start(experiment.hyperparameters, key)

    shapes = jax.eval_shape(start, jax.eval_shape(jax.random.key, 0))
    where = jax.tree.map(lambda leaf: leaf.sharding, experiment.placed(shapes))
    return jitted(start, out_shardings=where)


def advance_of(experiment: Experiment) -> Callable:
    """Returns `(hyperparameters, state, roots, data, count) -> (state, reports)`.

    It plays `count` rounds and is not jitted. The `data` are `Resident`; or of one
    round its batches, and the beginnings of the clients' examples.
    """
    local, resident = experiment.local, experiment.placement == "resident"

    def advance(hyperparameters, state, roots, data, count):
        one_round = make_round(
            experiment.noisy({**experiment.hyperparameters, **hyperparameters}),
            local.fetch,
            experiment.mesh,
            chunk=experiment.clients_at_once,
        )
        if resident:
            sampler, most = experiment.sampler(data.starts), experiment.most
            return run_rounds(one_round, sampler, state, roots, data, count, most=most)
        batches, starts = data

        def on_these(state, key, cohort, batches):
            return one_round(state, key, cohort, None, batches)

        sampler = experiment.sampler(starts)
        return run_rounds(on_these, sampler, state, roots, batches, count, most=1)

    return advance


def compile_rounds(
    experiment: Experiment, state: State, roots: Roots, seal: Seal | None = None
) -> Advance:
    """Returns `advance(state, done, count)`, which uses up the state.

    Args:
      state: the state, or its shapes with their shardings.
      roots: the roots of the run.
      seal: called before anything is compiled; None: the roots are `roots`.
    """
    mesh, same, clients = experiment.mesh, experiment.everywhere, experiment.clients
    roots = secret.placed(roots, same)
    constants = experiment.constants
    given = arrays_of(experiment.hyperparameters), placed(mesh, trees_of(constants))
    where = jax.tree.map(lambda leaf: leaf.sharding, state)

    def advance(state, roots, data, count, hyperparameters):
        return advance_of(experiment)(hyperparameters, state, roots, data, count)

    def compiled(data, count):
        function = as_argument(advance, constants)
        program = jax.jit(function, donate_argnums=0, out_shardings=(where, same))
        lowered = program.lower(state, roots, data, count, *given)
        own = roots
        if seal:
            own = secret.placed(seal(fingerprint(lowered, mesh)), same)
        return compile_program(lowered, mesh), own

    if experiment.placement == "resident":
        data = client_batches.resident(*clients, device=same)
        program, own = compiled(data, 0)
        return lambda state, done, count: program(state, own, data, count, *given)
    on_host = streamed.on_host(*clients)
    draw, gather, shapes = prefetch.batches_on_devices(
        experiment.cohort,
        mesh,
        roots,
        on_host,
        multiple=rows(mesh) * experiment.clients_at_once,
        steps=experiment.local.steps,
        batch=experiment.local.batch,
    )
    starts = jax.device_put(on_host.starts, same)
    program, own = compiled((shapes, starts), 1)
    one_round = prefetch.gathered_ahead(
        lambda number: draw(own, number),
        gather,
        lambda state, sent: program(state, own, (sent, starts), 1, *given),
    )
    return one_by_one(one_round)


def arrays_of(hyperparameters: Hyperparameters) -> dict[str, jax.Array]:
    """Returns those that are arguments of a program."""
    return {k: v for k, v in hyperparameters.items() if hasattr(v, "dtype")}


def one_by_one(one_round: Callable[[State, int], tuple[State, Report]]) -> Advance:
    """Returns `advance(state, done, count)` that calls `one_round(state, number)`.

    Reports are numpy arrays with a leading axis of `count`.
    """

    def advance(state, done, count):
        reports = []
        for number in range(done, done + count):
            state, report = one_round(state, number)
            report = jax.device_get(report)
            reports.append(jax.tree.map(lambda leaf: leaf[:1], report))
        return state, jax.tree.map(lambda *leaves: np.concatenate(leaves), *reports)

    return advance


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

    The count may be traced: one program then serves blocks of all lengths, and how a
    run is cut into blocks cannot change a bit of it.

    Args:
      one_round: `(state, key, cohort, data) -> (state, report)`, of `make_round`.
      count: the number of rounds, at most `most`.
      most: the number of rounds whose reports there is room for.

    Returns:
      The state, and reports along a leading axis of `most`, of which the first `count`
      are those of the rounds.
    """

    def step(state):
        cohort = of_round(sampler, key, state.server.round)
        return one_round(state, key, cohort, data)

    play, (_, shapes) = traced(step, state)

    def body(number, carry):
        state, reports = carry
        state, report = play(state)
        return state, jax.tree.map(
            lambda rows, row: rows.at[number].set(row), reports, report
        )

    reports = jax.tree.map(lambda row: jnp.zeros((most, *row.shape), row.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, reports))
