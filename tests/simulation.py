"""Rounds of the engine on the clients of `tests.quadratics`."""

import functools

import jax
import numpy as np

from fl_sketch import engine
from tests.meshes import mesh_of
from tests.quadratics import PARAMS, fetch, optima

KEY = jax.random.key(0)
ROOM = 20  # one program serves all numbers of rounds up to this
everyone = functools.cache(engine.everyone)
# Of small programs that run once or twice, compiling is all that costs. What is
# compared to the bit must be compiled alike.
compiled = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


@functools.lru_cache(maxsize=16)
def _program(algorithm, sampler, devices, chunk, room):
    mesh = mesh_of(devices, "clients")
    one_round = engine.make_round(algorithm, fetch, mesh, chunk=chunk)
    one_round = jax.jit(one_round)  # which is traced once, and not for its shapes too
    return compiled(functools.partial(engine.run_rounds, one_round, sampler, most=room))


def simulate(
    algorithm,
    *,
    rounds=5,
    clients=6,
    sampler=None,
    key=KEY,
    data=None,
    devices=1,
    chunk=1,
    start=None,
):
    """Returns the state after some rounds, and their reports.

    Args:
      algorithm: whose rounds.
      rounds: how many.
      clients: how many there are.
      sampler: of cohorts; None: everyone.
      key: of the run.
      data: of the clients; None: their optima.
      devices: that share the clients.
      chunk: of clients at once.
      start: the state to go on from; None: that of round 0.
    """
    sampler = sampler or everyone(clients)
    room = max(rounds, ROOM)
    run = _program(algorithm, sampler, devices, chunk, room)
    state = start or engine.initial_state(algorithm, PARAMS, clients)
    state, reports = run(state, key, optima(clients) if data is None else data, rounds)
    return state, jax.tree.map(lambda leaf: leaf[:rounds], reports)


@functools.lru_cache(maxsize=32)
def _round(algorithm, devices, chunk):
    mesh = mesh_of(devices, "clients")
    return compiled(engine.make_round(algorithm, fetch, mesh, chunk=chunk))


def cohort_of(ids, weights=None, denominator=None):
    """Returns a cohort in numpy; None: all weigh one, and the sum of the weights."""
    weights = np.ones(len(ids)) if weights is None else np.asarray(weights)
    divisor = weights.sum() if denominator is None else denominator
    weights = weights.astype(np.float32)
    return engine.Cohort(np.asarray(ids, np.int32), weights, np.float32(divisor))


def with_cohort(
    algorithm,
    cohort,
    *,
    rounds=5,
    clients=6,
    data=None,
    devices=1,
    chunk=1,
    start=None,
):
    """Returns the state after some rounds with this cohort, and reports, in numpy.

    One program serves all cohorts of as many places. The options are those of
    `simulate`.
    """
    one_round = _round(algorithm, devices, chunk)
    state = start or jax.device_get(engine.initial_state(algorithm, PARAMS, clients))
    data = np.asarray(optima(clients)) if data is None else np.asarray(data)
    reports = []
    for _ in range(rounds):
        state, report = jax.device_get(one_round(state, KEY, cohort, data))
        reports.append(report)
    return state, jax.tree.map(lambda *leaves: np.stack(leaves), *reports)
