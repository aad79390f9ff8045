"""Many rounds in one program: cohorts are drawn, rounds played, reports kept."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core.constants import Constant, as_argument, trees_of
from fl_sketch.core.protocols import Algorithm, Key, Roots
from fl_sketch.data import streamed
from fl_sketch.engine import prefetch
from fl_sketch.engine.clients import Fetch, traced
from fl_sketch.engine.cohort import Cohort, Sampler, everyone, of_round
from fl_sketch.engine.compiling import compile_program
from fl_sketch.engine.mesh import mesh_over, placed, rows
from fl_sketch.engine.programs import fingerprint
from fl_sketch.engine.round import Report, State, make_round

Advance = Callable[[State, int, int], tuple[State, Report]]


class Play(NamedTuple):
    """How rounds are played, of which `compile_rounds` makes a program.

    Attributes:
      weighted: `(starts) -> sampler` with the weights of clients whose examples begin
        there; None: `sampler` has them.
      most: the number of rounds for whose reports there is room.
    """

    one_round: Callable
    sampler: Sampler
    weighted: Callable[[jax.Array], Sampler] | None = None
    chunk: int = 1
    steps: int = 1
    batch: int = 1
    most: int = 1

    def rounds(self, state: State, key: Key | Roots, data, count):
        """Returns the state after `count` rounds on resident data, and reports."""
        sampler = self.sampler_for(data.starts)
        return run_rounds(
            self.one_round, sampler, state, key, data, count, most=self.most
        )

    def on_batches(self, state: State, key: Key | Roots, sent, count):
        """Returns the same for one round on `sent`, its batches and the starts."""
        batches, starts = sent

        def on_these(state, key, cohort, batches):
            return self.one_round(state, key, cohort, None, batches)

        sampler = self.sampler_for(starts)
        return run_rounds(on_these, sampler, state, key, batches, count, most=1)

    def sampler_for(self, starts: jax.Array) -> Sampler:
        """Returns the sampler for clients whose examples begin at `starts`."""
        return self.weighted(starts) if self.weighted else self.sampler


def with_everyone(
    algorithm: Algorithm, fetch: Fetch, population: int, *, chunk: int = 1
) -> Callable:
    """Returns `(state, key) -> (state, report)`, a round of all clients, not jitted.

    It runs on one device: for small problems inside other programs. The `fetch` is as
    `make_round` has it, without data.
    """
    mesh = mesh_over(jax.devices()[:1])
    one_round = make_round(algorithm, fetch, mesh, chunk=chunk)
    cohort = everyone(population)(jax.random.key(0))
    return lambda state, key: one_round(state, key, cohort, None, None)


def compile_rounds(
    play: Play,
    mesh: jax.sharding.Mesh,
    *,
    state: State,
    key: Roots,
    data: Any,
    constants: Sequence[Constant] = (),
    seal: Callable[[str], Roots] | None = None,
) -> tuple[Advance, jax.stages.Compiled]:
    """Returns `advance(state, done, count)`, and the program that it calls.

    Args:
      state: the state, or its shapes with their shardings.
      key: the roots of the run, on all devices.
      data: `Resident` data on the devices, or `OnHost`, to be streamed.
      constants: what the algorithm reads and nothing changes, as a model's part that
        does not train. Each device has it once.
      seal: `(fingerprint) -> roots` of the rounds, called before they are compiled;
        None: the roots are `key`.
    """
    same = NamedSharding(mesh, P())
    out = jax.tree.map(lambda leaf: leaf.sharding, state), same
    trees = placed(mesh, trees_of(constants))

    def compiled(function, *arguments):
        function = as_argument(function, constants)
        program = jax.jit(function, donate_argnums=0, out_shardings=out)
        lowered = program.lower(state, key, *arguments, trees)
        roots = key
        if seal:
            where = jax.tree.map(lambda root: root.sharding, key)
            roots = jax.device_put(seal(fingerprint(lowered, mesh)), where)
        program = compile_program(lowered, mesh)
        return lambda state, *own: program(state, roots, *own, trees), program, roots

    if isinstance(data, streamed.OnHost):
        draw, gather, shapes = prefetch.batches_on_devices(
            play.sampler,
            mesh,
            key,
            data,
            multiple=rows(mesh) * play.chunk,
            steps=play.steps,
            batch=play.batch,
        )
        starts = jax.device_put(data.starts, same)
        run, program, roots = compiled(play.on_batches, (shapes, starts), 1)
        one_round = prefetch.gathered_ahead(
            lambda number: draw(roots, number),
            gather,
            lambda state, sent: run(state, (sent, starts), 1),
        )
        return one_by_one(one_round), program
    run, program, _ = compiled(play.rounds, data, 0)
    return lambda state, done, count: run(state, data, count), program


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
