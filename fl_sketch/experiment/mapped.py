"""The points of a program as one compiled program, over seeds and over numbers.

A point is a seed and values of the continuous keys. Seeds are the outer axis: points
of one seed share its cohorts, batches and sketches, which `vmap` then makes once.
On a CPU points run one after the other (`lax.map`), since convolutions batched by
vmap are 2.2 times slower there; elsewhere all at once.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine, validate
from fl_sketch.data import clients
from fl_sketch.experiment import choices
from fl_sketch.experiment.build import Program
from fl_sketch.experiment.grid import Group
from fl_sketch.protocols import Key

MAPS: dict[str, Callable[[Callable], Callable]] = {
    "loop": lambda one: lambda *all_: jax.lax.map(lambda each: one(*each), all_),
    "vmap": jax.vmap,
}


class Seeded(NamedTuple):
    """What differs from seed to seed, along a leading axis."""

    key: Key
    starts: jax.Array  # shape=(seeds, clients + 1), int32, into the indices of all


class Mapped(NamedTuple):
    """All points of a program; what it returns has their axis first.

    Attributes:
      states: before the first round; `advance` uses them up.
      advance: `(states, done, count) -> (states, Report)`, the latter numpy arrays.
      evaluate: `(states) -> {"test_loss": ..., "test_accuracy": ...}`, numpy arrays.
      seconds: that compiling took.
    """

    states: engine.State
    advance: Callable[[engine.State, int, int], tuple[engine.State, engine.Report]]
    evaluate: Callable[[engine.State], dict[str, np.ndarray]]
    seconds: float


def default_map() -> str:
    """Returns the name of the map that is the faster one on this platform."""
    return "loop" if jax.default_backend() == "cpu" else "vmap"


def compile_points(program: Program, group: Group, how: str) -> Mapped:
    """Compiles a program for all its points.

    Args:
      program: of the group's config.
      group: the points.
      how: a name of `MAPS`.
    """
    validate.one_of(tuple(MAPS), map=how)
    begin = time.perf_counter()
    seeded, data = _data(program, group.seeds)
    table = np.array([list(own.values()) for own in group.numbers], np.float32)
    table, seeded = jax.device_put((table, seeded), program.same)
    start, rounds, evaluate = _over_points(program, group, MAPS[how])

    start = jax.jit(start, out_shardings=program.same)
    states = start(table, seeded)
    rounds = jax.jit(rounds, donate_argnums=2, out_shardings=program.same)
    rounds = rounds.lower(table, seeded, states, data, 0, 0).compile()
    evaluate = jax.jit(evaluate)
    evaluate = evaluate.lower(table, seeded, states.server.params, program.test)
    evaluate = evaluate.compile()

    def advance(states, done, count):
        states, reports = rounds(table, seeded, states, data, done, count)
        return states, _points_first(reports)

    def measure(states):
        params = states.server.params
        return _points_first(evaluate(table, seeded, params, program.test))

    return Mapped(states, advance, measure, time.perf_counter() - begin)


def _over_points(program: Program, group: Group, each: Callable):
    """Returns start, rounds and evaluate of a program, over all points."""
    fixed, names = choices.numbers_of(group.config), tuple(group.numbers[0])

    def numbers(row):
        # Keys that are not swept stay Python numbers: their part is compiled in.
        return {**fixed, **dict(zip(names, row, strict=True))}

    def start(table, seeds):
        def one(row, seed, own):
            del own
            return program.start(numbers(row), seed.key)

        return _over(each, one)(table, seeds, ())

    def rounds(table, seeds, states, data, done, count):
        def one(row, seed, state):
            # The same number for all points: what it decides is not batched either.
            server = state.server._replace(round=jnp.int32(done))
            own = data._replace(starts=seed.starts)
            state = state._replace(server=server)
            return program.rounds(numbers(row), state, seed.key, own, count)

        return _over(each, one)(table, seeds, states)

    def evaluate(table, seeds, params, test):
        def one(row, seed, params):
            del seed
            return program.evaluate(numbers(row), params, test)

        return _over(each, one)(table, seeds, params)

    return start, rounds, evaluate


def _over(each: Callable, one: Callable) -> Callable:
    """Returns `(numbers, seeds, own)` for `one` of a row, a seed and what it owns."""

    def of_seed(table, seed, own):
        return each(lambda row, own: one(row, seed, own))(table, own)

    def of_all(table, seeds, own):
        return each(lambda seed, own: of_seed(table, seed, own))(seeds, own)

    return of_all


def _data(program: Program, seeds: Sequence[int]) -> tuple[Seeded, clients.Resident]:
    """Returns the seeds' partitions one after the other, into one set of examples."""
    each = [program.data(seed) for seed in seeds]
    before = np.cumsum([0, *(data.indices.size for data in each)])
    validate.at_most(2**31 - 1, "starts are int32", indices=int(before[-1]))
    starts = [data.starts + int(n) for data, n in zip(each, before, strict=False)]
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    indices = jnp.concatenate([data.indices for data in each])
    data = clients.Resident(each[0].examples, indices, None)
    return Seeded(keys, jnp.stack(starts)), jax.device_put(data, program.same)


def _points_first(tree: Any) -> Any:
    def merged(leaf):
        return leaf.reshape(-1, *leaf.shape[2:])

    return jax.tree.map(merged, jax.device_get(tree))
