"""What a round will take in seconds and in memory, before a run.

Rounds of a few clients are compiled and timed, and what grows with the clients is
extrapolated to a whole cohort. Their results are thrown away.
"""

import dataclasses
import functools
import math
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
from fl_sketch.experiments.bench.extrapolation import Cost, extrapolated, seconds_of
from fl_sketch.run import display
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import secrets
from fl_sketch.workdir.rows import sized

FLOAT_BYTES = 4


class Forecast(NamedTuple):
    """What a run will take.

    Attributes:
      evaluation: the seconds of one evaluation.
      clients: the seconds of all turns of a round; None: not told apart.
      data: bytes of the data on a device.
      state: bytes of the state on a device.
      frozen: bytes on a device of arrays that do not train.
      operations: multiplications and additions of the local work of a round.
      moved: bytes of parameters that local steps of a round must read and write.
      speed: the speed of the devices in products of matrices and in copies.
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

    return seconds_of({0: play})[0]


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
    limits = ("its matrix products", products), ("copies of the parameters", copies)
    name, least = max(limits, key=lambda limit: limit[1])
    share = f" ({found.clients:.3g} s for clients)" if found.clients else ""
    return [
        f"time on {display.devices(setup.mesh.size)}: {cost.seconds:.3g} s per round"
        f"{share}, {found.evaluation:.3g} s per evaluation; {setup.last} rounds: "
        f"{whole:.3g} s after compilation",
        f"  memory per device: {sized(memory)} (data {sized(found.data)}, state "
        f"{sized(found.state)}, {still}local training {sized(cost.temporaries)})",
        f"  at least {least:.3g} s per round, for {name}: {found.operations:.3g} "
        f"operations of products at {found.speed.operations:.3g} per second, and "
        f"{sized(found.moved)} of parameters at {sized(found.speed.bytes)} per second",
    ]
