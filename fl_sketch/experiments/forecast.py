"""What a round will take in seconds and in memory, before a run.

Rounds of a few clients are compiled and timed, and what grows with the clients is
extrapolated to a whole cohort. Their results are thrown away.
"""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch import engine
from fl_sketch.core import trees
from fl_sketch.core.constants import jitted, size_of, trees_of
from fl_sketch.engine import Cohort, host_states
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.rounds import Play, compile_rounds
from fl_sketch.experiments import machine
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import secrets
from fl_sketch.workdir.rows import sized

FEW, MORE = 2, 4  # turns of a device in timed rounds: one alone has another form
LONG = 0.5  # seconds of a round: longer ones are extrapolated
BLOCK = 0.1  # seconds of rounds that are timed together, as a run plays them
SAMPLES, LONGEST = 7, 3.0  # blocks of each, and the seconds for all samples of one
FLOAT_BYTES = 4


class Cost(NamedTuple):
    """What a round takes.

    Attributes:
      seconds: of the whole round.
      turn: of a device's work on one chunk of clients; None: there are so few that
        the whole round was timed.
      temporaries: bytes on a device apart from the data and the state.
    """

    seconds: float
    turn: float | None
    temporaries: float


class Forecast(NamedTuple):
    """What a run will take.

    Attributes:
      evaluation: the seconds of one.
      clients: the seconds of all turns of a round; None: not told apart.
      data: bytes of the data on a device.
      state: bytes of the state on a device.
      frozen: bytes on a device of what does not train.
      operations: multiplications and additions of the local work of a round.
      moved: bytes of parameters that local steps of a round must read and write.
      speed: what the devices reach in products of matrices and in copies.
    """

    cost: Cost
    evaluation: float
    clients: float | None
    data: int
    state: int
    frozen: int
    operations: float
    moved: float
    speed: machine.Speed


def extrapolated(
    build: Callable[[int], tuple[Any, Callable[[int], None]]], places: int, at_once: int
) -> Cost:
    """Returns the cost of a round of `places` clients.

    Args:
      build: `(clients) -> (program, play)` of a round of so many clients, where
        `play(count)` plays so many rounds.
      at_once: the number of clients that all devices work on in one turn.
    """
    turns = -(-places // at_once)
    if turns < MORE:
        program, play = build(places)
        return Cost(_seconds({1: play})[1], None, temporaries(program))
    few = build(FEW * at_once)
    many = min(turns, max(MORE, int(FEW * LONG / _once(few[1]))))
    built = {FEW: few, many: build(min(places, many * at_once))}
    seconds = _seconds({n: play for n, (_, play) in built.items()})
    scratch = {n: temporaries(program) for n, (program, _) in built.items()}
    turn, more = ((of[many] - of[FEW]) / (many - FEW) for of in (seconds, scratch))
    rest = turns - many
    return Cost(seconds[many] + turn * rest, turn, scratch[many] + more * rest)


def _once(play: Callable[[int], None]) -> float:
    """Returns the seconds of a round, of which the first is not timed."""
    play(1)
    return max(_taken(play, 1), 1e-9)


def _seconds(plays: dict[int, Callable[[int], None]]) -> dict[int, float]:
    """Returns the seconds of one round of each, timed in turn."""
    counts, samples = {}, {name: [] for name in plays}
    for name, play in plays.items():
        counts[name] = max(1, int(BLOCK / _once(play)))
    slowest = max(_taken(play, counts[name]) for name, play in plays.items())
    for _ in range(max(2, min(SAMPLES, int(LONGEST / slowest)))):
        for name, play in plays.items():
            samples[name].append(_taken(play, counts[name]) / counts[name])
    return {name: statistics.median(taken) for name, taken in samples.items()}


def _taken(play: Callable[[int], None], count: int) -> float:
    begin = time.perf_counter()
    play(count)
    return time.perf_counter() - begin


def temporaries(program: Any) -> float:
    """Returns the bytes of a program on a device apart from its arguments."""
    memory = program.memory_analysis()
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return float(memory.temp_size_in_bytes + new)


def of_setup(setup: Setup) -> Forecast:
    """Returns the forecast of a run."""
    config, places = setup.config, setup.sampler.places
    at_once = engine.rows(setup.mesh) * setup.chunk
    data = setup.data(config.seed)
    cost = extrapolated(functools.partial(_rounds, setup, data), places, at_once)
    start = functools.partial(setup.start, setup.numbers)
    state = setup.placed(jax.eval_shape(start, jax.eval_shape(jax.random.key, 0)))
    read_and_written = 2 * FLOAT_BYTES * trees.size(setup.params)
    read_and_written += size_of(setup.constants)
    return Forecast(
        cost=cost,
        evaluation=_evaluation(setup),
        clients=cost.turn and cost.turn * -(-places // at_once),
        data=_on_a_device(data) if setup.form == "resident" else 0,
        state=_on_a_device(state),
        frozen=_on_a_device(trees_of(setup.constants)),
        operations=setup.talk.operations * places,
        moved=float(read_and_written * config.client.steps * places),
        speed=machine.speed(setup.mesh),
    )


def _rounds(setup: Setup, data: Any, clients: int) -> tuple[Any, Callable]:
    """Returns the program of a run's rounds with so many clients, and what plays it."""
    roots = secrets.roots(setup.config.seed, setup.secret(), setup.same)
    start = functools.partial(setup.start, setup.numbers, rows=clients)
    shapes = setup.placed(jax.eval_shape(start, roots))
    start = jitted(start, out_shardings=jax.tree.map(lambda x: x.sharding, shapes))
    play = _of_few(setup.play(setup.numbers), clients)
    own = {"state": shapes, "key": roots, "data": data}
    advance, program = compile_rounds(
        play, setup.mesh, constants=setup.constants, **own
    )
    state, done = start(roots), 0
    if play.bank == "host":
        state = host_states.start(state, setup.config.data.clients)

    def played(count: int) -> None:
        nonlocal state, done
        for number in range(0, count, play.most):
            many = min(play.most, count - number)
            state, report = advance(state, done, many)
            done += many
        jax.block_until_ready(state)

    return program, played


def _of_few(play: Play, clients: int) -> Play:
    """Returns the same rounds with the first clients of every cohort alone."""

    def few(sampler: Sampler) -> Sampler:
        def draw(key, number):
            whole = sampler(key, number)
            asked = whole.asked[:clients]
            ids, weights = whole.ids[:clients], whole.weights[:clients]
            rows = jnp.arange(clients, dtype=jnp.int32)
            return Cohort(ids, weights, jnp.sum(weights), asked, rows)

        return dataclasses.replace(sampler, draw=draw, timed=True)

    weighted = play.weighted
    return play._replace(
        sampler=few(play.sampler),
        weighted=weighted and (lambda starts: few(weighted(starts))),
    )


def _evaluation(setup: Setup) -> float:
    """Returns the seconds of an evaluation."""
    evaluate, test = setup.evaluation
    program = jitted(functools.partial(evaluate, setup.numbers))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), setup.params)

    def play(count: int) -> None:
        for _ in range(count):
            jax.block_until_ready(program(params, test))

    return _seconds({0: play})[0]


def _on_a_device(tree: Any) -> int:
    """Returns the bytes of arrays, or of their shapes, on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def lines(setup: Setup) -> list[str]:
    """Returns what to print of the forecast of a run, which it makes."""
    found, config = of_setup(setup), setup.config
    cost, evaluations = found.cost, -(-setup.last // config.eval_every)
    whole = setup.last * cost.seconds + evaluations * found.evaluation
    memory = found.data + found.state + found.frozen + cost.temporaries
    still = f"frozen {sized(found.frozen)}, " if found.frozen else ""
    products = found.operations / found.speed.operations
    copies = found.moved / found.speed.bytes
    name, least = max(("products", products), ("memory", copies), key=lambda x: x[1])
    share = f" ({found.clients:.3g} of them clients)" if found.clients else ""
    return [
        f"measured on {engine.name_of(setup.mesh)}: a round takes {cost.seconds:.3g} "
        f"seconds{share}, an evaluation {found.evaluation:.3g}; {setup.last} rounds: "
        f"{whole:.3g}, after compiling",
        f"  memory of a device: {sized(memory)}: data {sized(found.data)}, state "
        f"{sized(found.state)}, {still}work {sized(cost.temporaries)}",
        f"  limit: {name}, {least:.3g} seconds a round, for {found.operations:.3g} "
        f"operations at {found.speed.operations:.3g} a second and {sized(found.moved)} "
        f"of parameters at {sized(found.speed.bytes)} a second",
    ]
