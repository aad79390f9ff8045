"""FedSKETCH, FedSKETCHGATE and their cousins, against the papers' lines."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms, engine, sketch
from fl_sketch.algorithms import catalog
from fl_sketch.core.keys import Purpose, for_purpose
from fl_sketch.core.wire import byte_count
from fl_sketch.engine import costs
from tests.oracles import fedsketch as oracle
from tests.quadratics import COUNT, PARAMS, RATE, STEPS, D, flat, loss, optima
from tests.quick import some_fast
from tests.refusals import refused
from tests.simulation import everyone, simulate

CLIENTS, COHORT, ROUNDS, HEAVY = 6, 4, 20, 5
KEY = jax.random.key(7)
SOME = engine.fixed_size(CLIENTS, COHORT)
EXACT_GAIN = 1 / (RATE * STEPS)


run = functools.partial(simulate, rounds=ROUNDS, clients=CLIENTS, sampler=SOME, key=KEY)


def cohorts():
    return [
        np.asarray(SOME(for_purpose(KEY, t, Purpose.COHORT)).ids) for t in range(ROUNDS)
    ]


GAINS = {"privix": EXACT_GAIN, "heaprix": 1 / STEPS}


@pytest.mark.parametrize("query", some_fast(GAINS, ["privix"]))
def test_fedsketch_follows_algorithm_5(query):
    algorithm = algorithms.fedsketch(
        loss,
        sketch=COUNT,
        client_rate=RATE,
        server_rate=0.3,
        query=query,
        heavy=HEAVY,
    )
    state, _ = run(algorithm)
    expected = oracle.fedsketch(
        np.asarray(optima(CLIENTS)), cohorts(), KEY, gamma=0.3, query=query, m=HEAVY
    )
    np.testing.assert_allclose(flat(state.server.params), expected, rtol=1e-5)


def test_fedsketch_with_a_stored_sketch_steps_by_medians_of_its_rows():
    options = {"compression": 2.0, "rows": 3, "layout": "whole", "stored": True}
    op = catalog.build_sketch("count_sketch", D, **options)
    algorithm = algorithms.fedsketch(loss, sketch=op, client_rate=RATE, server_rate=0.3)
    state, _ = run(algorithm, rounds=1, sampler=everyone(CLIENTS))
    update = -(1 - (1 - RATE) ** STEPS) * optima(CLIENTS).mean(0)
    message = op.apply(KEY, update)  # of any key
    rows = [
        3 * op.transpose(KEY, jnp.zeros_like(message).at[row].set(message[row]), update)
        for row in range(3)
    ]
    medians, means = np.median(rows, axis=0), np.mean(rows, axis=0)
    assert not np.allclose(medians, means)
    params = flat(state.server.params)
    np.testing.assert_allclose(params, -0.3 * medians, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("query", some_fast(GAINS, ["heaprix"]))
def test_fedsketchgate_follows_algorithm_6(query):
    """With half of the devices away, whose variates wait for them."""
    gain = GAINS[query]
    algorithm = algorithms.fedsketchgate(
        loss,
        sketch=COUNT,
        client_rate=RATE,
        server_rate=0.3,
        gain=gain,
        query=query,
        heavy=HEAVY,
    )
    state, _ = run(algorithm)
    x, c = oracle.fedsketchgate(
        np.asarray(optima(CLIENTS)),
        cohorts(),
        KEY,
        gamma=0.3,
        gain=gain,
        query=query,
        m=HEAVY,
    )
    variates = jax.vmap(flat)(state.clients.local)
    scale = np.abs(c).max()
    np.testing.assert_allclose(flat(state.server.params), x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(variates / scale, c / scale, atol=1e-5)


def test_scaffold_follows_its_algorithm_with_half_of_what_it_sends():
    algorithm = algorithms.scaffold(
        loss,
        client_rate=RATE,
        server_rate=0.7,
        steps=STEPS,
    )
    state, report = run(algorithm)
    expected = oracle.scaffold(np.asarray(optima(CLIENTS)), cohorts(), gamma=0.7)
    np.testing.assert_allclose(flat(state.server.params), expected, rtol=1e-5)
    assert (byte_count(report.simulator_only.bytes_up) == 4 * D).all()
    traffic = costs.measure_traffic(algorithm, PARAMS, jnp.zeros((STEPS, D)))
    ways = {"download": "model", "rounds": 10}
    assert costs.prices(algorithm, PARAMS, traffic, **ways).model == 2 * 4 * D


def stretched(params, optimum):
    """A loss of unlike curvature, so that local steps of unlike clients disagree."""
    curvature = 1 + jnp.abs(jnp.sin(3 * optimum))
    return jnp.sum(curvature * (flat(params) - optimum) ** 2) / 2


def stretched_gap(algorithm, rounds=400):
    """Returns the distance to the minimum of the mean of the stretched losses."""
    points = np.asarray(optima(CLIENTS))
    curvature = 1 + np.abs(np.sin(3 * points))
    target = (curvature * points).sum(0) / curvature.sum(0)
    state, _ = run(algorithm, rounds=rounds, sampler=everyone(CLIENTS))
    gap = np.asarray(flat(state.server.params)) - target
    return float(np.linalg.norm(gap))


@pytest.mark.slow
def test_tracking_reaches_the_optimum_where_plain_averaging_stalls():
    """The exact channel: at least ten times nearer; quantised: nearer too."""
    options = {"client_rate": RATE, "server_rate": 0.5}
    stalls = stretched_gap(algorithms.fedavg(stretched, client_rate=RATE))
    tracked = algorithms.fedgate(stretched, gain=EXACT_GAIN, **options)
    quantised = algorithms.fedcomgate(stretched, gain=EXACT_GAIN, levels=64, **options)
    scaffold = algorithms.scaffold(stretched, steps=STEPS, **options)
    assert stalls > 0.05
    assert stretched_gap(tracked) * 10 <= stalls
    assert stretched_gap(scaffold) * 10 <= stalls
    assert stretched_gap(quantised) * 2 <= stalls


@pytest.mark.parametrize(
    "options",
    [
        {"query": "heaprics"},
        {"query": "heaprix", "values": "exakt"},
        {"query": "heaprix", "sketch": sketch.srht(8)},
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options):
    given = {"sketch": COUNT, "client_rate": RATE, "server_rate": 1.0} | options
    with refused(match=[*options][-1], error=(ValueError, TypeError)):
        algorithms.fedsketch(loss, **given)
