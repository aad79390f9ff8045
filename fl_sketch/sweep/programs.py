"""The points of a program as one compiled program, over seeds and over numbers.

A point is a seed and values of the continuous keys. Seeds are the outer axis: points
of one seed share its cohorts, batches and sketches, which `vmap` then makes once.
On a CPU points run one after the other (`lax.map`), since convolutions batched by
vmap are 2.2 times slower there; elsewhere all at once, or as many as the device has
memory for.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.core import chacha, free_memory, validate
from fl_sketch.core.constants import as_argument, jitted, trees_of
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.data import batches as draws
from fl_sketch.engine.evaluate import in_order
from fl_sketch.engine.loop import Compiled
from fl_sketch.run.setup import Setup
from fl_sketch.sweep.grid import Group

MAPS = ("loop", "vmap")


class Seeded(NamedTuple):
    """What differs from seed to seed, along a leading axis.

    Attributes:
      key: the key of each seed, [seeds].
      starts: the beginnings of clients' examples in the indices of all seeds one after
        the other, int32 [seeds, clients + 1].
    """

    key: Key
    starts: jax.Array


class Points(NamedTuple):
    """All points of a program, compiled; what it returns has their axis first.

    Attributes:
      states: the states before the first round, over seeds and numbers; `advance` uses
        them up.
      at_once: the number of points that run at the same time.
    """

    states: engine.State
    compiled: Compiled
    at_once: int


def default_map() -> str:
    """Returns the name of the map that is the faster one on this platform."""
    return "loop" if jax.default_backend() == "cpu" else "vmap"


def compile_points(setup: Setup, group: Group, how: str) -> Points:
    """Returns a program compiled for all its points, which it also starts.

    Where the device has no memory for all of them at once, it is compiled again for
    fewer at a time.

    Args:
      setup: the setup of the group's config.
      how: a name of `MAPS`.

    Raises:
      ValueError: for another name, or more indices of examples than int32 can count.
    """
    validate.one_of(MAPS, map=how)
    begin = time.perf_counter()
    seeded, data = _data(setup, group.seeds)
    table = np.array([list(own.values()) for own in group.numbers], np.float32)
    table, seeded = jax.device_put((table, seeded), setup.same)
    own, test = _secrets(setup, group), setup.evaluation[1]
    constants, frozen = setup.constants, trees_of(setup.constants)
    start, *_ = _over_points(setup, group, (1, 1))
    states = jitted(start, out_shardings=setup.same)(table, seeded)

    most = (len(group.seeds), len(table)) if how == "vmap" else (1, 1)
    for at_once in _fewer_and_fewer(most):
        _, rounds, evaluate = _over_points(setup, group, at_once)
        rounds = as_argument(rounds, constants)
        rounds = jax.jit(rounds, donate_argnums=2, out_shardings=setup.same)
        rounds = rounds.lower(table, seeded, states, own, data, 0, 0, frozen)
        rounds = engine.compile_program(rounds, setup.mesh)
        evaluate = jax.jit(as_argument(evaluate, constants))
        evaluate = evaluate.lower(table, seeded, states.server.params, test, frozen)
        evaluate = engine.compile_program(evaluate, setup.mesh)
        free_memory.give_back()
        needed = max(_scratch(rounds), _scratch(evaluate))
        if needed <= free_memory.free(setup.mesh.local_devices):
            break

    def advance(states, done, count):
        arguments = table, seeded, states, own, data, done, count, frozen
        states, reports = rounds(*arguments)
        return states, _points_first(reports)

    def measure(states):
        params = states.server.params
        found = _points_first(evaluate(table, seeded, params, test, frozen))
        return in_order(found, setup.metrics)

    seconds = time.perf_counter() - begin
    compiled = Compiled(advance, measure, seconds)
    return Points(states, compiled, math.prod(at_once))


def _fewer_and_fewer(at_once: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yields how many seeds, and numbers of each, to run at once; down to one.

    >>> list(_fewer_and_fewer((3, 4)))
    [(3, 4), (2, 4), (1, 4), (1, 2), (1, 1)]
    """
    yield at_once
    while at_once != (1, 1):
        seeds, rows = at_once
        at_once = (-(-seeds // 2), rows) if seeds > 1 else (1, -(-rows // 2))
        yield at_once


def _scratch(compiled: jax.stages.Compiled) -> float:
    """Returns the bytes a program takes besides its arguments; 0 if it is unknown."""
    found = compiled.memory_analysis()
    if found is None:
        return 0
    fresh = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.temp_size_in_bytes + fresh


def _over_points(setup: Setup, group: Group, at_once: tuple[int, int]):
    """Returns start, rounds and evaluate of a program, over all points."""
    fixed, names = setup.numbers, tuple(group.numbers[0])

    def numbers(row):
        # Keys that are not swept stay Python numbers: their part is compiled in.
        return {**fixed, **dict(zip(names, row, strict=True))}

    def start(table, seeds):
        def one(row, seed, own):
            del own
            return setup.start(numbers(row), seed.key)

        return _over(at_once, one)(table, seeds, ())

    def rounds(table, seeds, states, secrets, data, done, count):
        def one(row, seed, own):
            state, secret = own
            # The same number for all points: what it decides is not batched either.
            server = state.server._replace(round=jnp.int32(done))
            state = state._replace(server=server)
            # Without a secret, points of a seed share its cohorts and batches.
            roots = Roots(seed.key, seed.key if secret is None else secret)
            dealt = data._replace(starts=seed.starts)
            return setup.play(numbers(row)).rounds(state, roots, dealt, count)

        return _over(at_once, one)(table, seeds, (states, secrets))

    def evaluate(table, seeds, params, test):
        def one(row, seed, params):
            del seed
            return setup.evaluation[0](numbers(row), params, test)

        return _over(at_once, one)(table, seeds, params)

    return start, rounds, evaluate


def _over(at_once: tuple[int, int], one: Callable) -> Callable:
    """Returns `(numbers, seeds, own)` for `one` of a row, a seed and what it owns."""
    seeds_at_once, rows_at_once = at_once

    def of_seed(table, seed, own):
        return _each(rows_at_once, lambda row, own: one(row, seed, own), table, own)

    def of_all(table, seeds, own):
        return _each(
            seeds_at_once, lambda seed, own: of_seed(table, seed, own), seeds, own
        )

    return of_all


def _each(at_once: int, one: Callable, *all_: Any) -> Any:
    """Returns `one` of every row of all arguments, so many of them at once."""
    count = len(jax.tree.leaves(all_)[0])
    if at_once == count > 1:
        return jax.vmap(one)(*all_)
    size = at_once if at_once > 1 else None  # a batch of one is batched all the same
    return jax.lax.map(lambda each: one(*each), all_, batch_size=size)


def _data(setup: Setup, seeds: Sequence[int]) -> tuple[Seeded, draws.Resident]:
    """Returns the seeds' partitions one after the other, into one set of examples."""
    each = [setup.resident(seed) for seed in seeds]
    before = np.cumsum([0, *(data.indices.size for data in each)])
    validate.at_most(2**31 - 1, "starts are int32", indices=int(before[-1]))
    starts = [data.starts + int(n) for data, n in zip(each, before, strict=False)]
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    indices = jnp.concatenate([data.indices for data in each])
    data = each[0]._replace(indices=indices, starts=None)
    return Seeded(keys, jnp.stack(starts)), jax.device_put(data, setup.same)


def _secrets(setup: Setup, group: Group) -> Key | None:
    """Returns a secret root for each point, [seeds, numbers]; None: nothing is private.

    Points never share one: what their noise has in common could be taken out.
    """
    if not setup.private:
        return None
    words = []
    for point in group.points:
        config = group.config.copy_and_resolve_references()
        config.update_from_flattened_dict(point)
        secret = setup.secret(config)
        assert secret
        words.append(chacha.words_of(secret.reveal()))
    shape = len(group.seeds), len(group.numbers), -1
    wrap = jax.jit(chacha.from_words, out_shardings=setup.same)
    return wrap(np.stack(words).reshape(shape))


def _points_first(tree: Any) -> Any:
    def merged(leaf):
        return leaf.reshape(-1, *leaf.shape[2:])

    return jax.tree.map(merged, jax.device_get(tree))
