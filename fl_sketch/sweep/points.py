"""A sweep: runs that differ in seeds and hyperparameters alone, as one program.

Seeds are the outer axis: points of one seed share its cohorts, batches and sketches,
which `vmap` then makes once. On a CPU points run one after the other (`lax.map`), since
convolutions batched by vmap are 2.2 times slower there; elsewhere all at once.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import free_memory, validate
from fl_sketch.core.constants import as_argument, jitted, trees_of
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.data import Clients
from fl_sketch.data import batches as client_batches
from fl_sketch.data.partition import Partition
from fl_sketch.engine.compiling import compile_program
from fl_sketch.engine.experiment import Experiment
from fl_sketch.engine.loop import (
    Callback,
    Progress,
    Result,
    play,
    recorder,
    result_of,
)
from fl_sketch.engine.rounds import advance_of

MAPS = ("loop", "vmap")


def default_map() -> str:
    """Returns the name of the map that is the faster one on this platform."""
    return "loop" if jax.default_backend() == "cpu" else "vmap"


def sweep(
    experiment: Experiment,
    rows: Sequence[Mapping[str, float]],
    seeds: Sequence[tuple[Key, Partition]],
    *,
    secrets: Sequence[Key] | None = None,
    how: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Result]:
    """Plays all points; returns a result for each, one seed after the other.

    A point that diverges does not stop the others.

    Args:
      experiment: the run of a point.
      rows: hyperparameters of each point of one seed, by the same names.
      seeds: the public root of each seed, and which client has which examples.
      secrets: the secret root of each point; None: nothing is private. Points never
        share one: what their noise has in common could be taken out.
      how: a name of `MAPS`; None: by platform.
    """
    how = how or default_map()
    validate.one_of(MAPS, map=how)
    begin, same = time.perf_counter(), experiment.everywhere
    names, shape = tuple(rows[0]), (len(seeds), len(rows))
    table = np.array([[*row.values()] for row in rows], np.float32)
    publics = jnp.stack([key for key, _ in seeds])
    data, starts = _partitioned(experiment, [partition for _, partition in seeds])
    owned = None
    if secrets is not None:
        owned = jnp.stack(list(secrets)).reshape(shape)
    given = jax.device_put((table, (publics, starts), owned, data), same)
    table, seeded, owned, data = given
    constants, frozen = experiment.constants, trees_of(experiment.constants)

    def hyperparameters(row):
        # What is not swept stays a number: its part is compiled in.
        return {**experiment.hyperparameters, **dict(zip(names, row, strict=True))}

    def over(one: Callable) -> Callable:
        """Returns `(rows, seeds, own)` for `one` of a point's row, seed and own."""

        def of_all(table, seeded, own):
            def of_seed(seed, own):
                return _each(how, lambda row, own: one(row, seed, own), table, own)

            return _each(how, of_seed, seeded, own)

        return of_all

    def start(table, seeded):
        def one(row, seed, own):
            del own
            return experiment.start(hyperparameters(row), seed[0])

        return over(one)(table, seeded, ())

    def rounds(table, seeded, states, owned, data, done, count):
        def one(row, seed, own):
            (public, starts), (state, secret) = seed, own
            # The same number for all points: what it decides is not batched either.
            state = state._replace(server=state.server._replace(round=jnp.int32(done)))
            # Without a secret, points of a seed share its cohorts and batches.
            roots = Roots(public, public if secret is None else secret)
            own_data = data._replace(starts=starts)
            own = dict(zip(names, row, strict=True))
            return advance_of(experiment)(own, state, roots, own_data, count)

        return over(one)(table, seeded, (states, owned))

    states = jitted(start, out_shardings=same)(table, seeded)
    function = as_argument(rounds, constants)
    traced = jax.jit(function, donate_argnums=2, out_shardings=same)
    lowered = traced.lower(table, seeded, states, owned, data, 0, 0, frozen)
    program = compile_program(lowered, experiment.mesh)
    free_memory.give_back()
    seconds = time.perf_counter() - begin

    def advance(states, done, count):
        states, reports = program(
            table, seeded, states, owned, data, done, count, frozen
        )
        return states, _points_first(jax.device_get(reports))

    own = [
        {**experiment.hyperparameters, **{k: np.float32(v) for k, v in row.items()}}
        for row in rows
    ]
    points = [*itertools.product(seeds, own)]

    def evaluate(states):
        params = _points_first(states.server.params)
        return [
            experiment.evaluate(one, _of(params, place))
            for place, (_, one) in enumerate(points)
        ]

    progress = play(
        Progress(states, [recorder(experiment) for _ in points], []),
        advance,
        evaluate,
        last=experiment.last,
        callbacks=callbacks,
        points=True,
    )
    state, results = _points_first(progress.state), []
    for place, ((public, partition), one) in enumerate(points):
        alone = dataclasses.replace(
            experiment,
            hyperparameters=one,
            clients=Clients(experiment.clients.examples, partition),
        )
        end = Progress(
            _of(state, place),
            [progress.recorders[place]],
            progress.rows[place :: len(points)],
        )
        roots = Roots(public, public if secrets is None else secrets[place])
        results.append(result_of(alone, roots, end, seconds))
    return results


def _partitioned(
    experiment: Experiment, shares: Sequence[Partition]
) -> tuple[client_batches.Resident, jax.Array]:
    """Returns the seeds' partitions one after the other, into one set of examples."""
    examples = client_batches.in_rows(experiment.clients.examples)
    each = [client_batches.resident(examples, one) for one in shares]
    before = np.cumsum([0, *(data.indices.size for data in each)])
    validate.at_most(2**31 - 1, "starts are int32", indices=int(before[-1]))
    starts = [data.starts + int(n) for data, n in zip(each, before, strict=False)]
    indices = jnp.concatenate([data.indices for data in each])
    return each[0]._replace(indices=indices, starts=None), jnp.stack(starts)


def _each(how: str, one: Callable, *all_: Any) -> Any:
    """Returns `one` of every row of all arguments, by a map of `MAPS`."""
    if how == "vmap" and len(jax.tree.leaves(all_)[0]) > 1:
        return jax.vmap(one)(*all_)
    return jax.lax.map(lambda each: one(*each), all_)


def _of(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


def _points_first(tree: Any) -> Any:
    """Returns a tree of [seeds, rows, ...] as one of [points, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
