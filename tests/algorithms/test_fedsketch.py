"""FedSKETCH, FedSKETCHGATE and their cousins, against the papers' lines."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms, channels, engine, sketch
from fl_sketch.algorithms import catalog
from fl_sketch.core.keys import Purpose, for_purpose
from fl_sketch.core.protocols import Keys
from fl_sketch.core.wire import byte_count
from fl_sketch.engine import costs
from tests.channels.rounds import quickly, single_client
from tests.oracles import fedsketch as oracle
from tests.quadratics import COUNT, PARAMS, RATE, STEPS, D, flat, loss, optima
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


@pytest.mark.parametrize("query", ["privix", "heaprix"])
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


@pytest.mark.parametrize(
    ("query", "gain"), [("privix", EXACT_GAIN), ("heaprix", 1 / STEPS)]
)
def test_fedsketchgate_follows_algorithm_6(query, gain):
    """With half of the devices away, whose variates wait for them."""
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


def test_scaffold_with_everyone_is_gradient_tracking():
    options = {"client_rate": RATE, "server_rate": 0.7}
    one, _ = run(
        algorithms.scaffold(loss, steps=STEPS, **options),
        sampler=everyone(CLIENTS),
    )
    other, _ = run(
        algorithms.fedgate(loss, gain=EXACT_GAIN, **options), sampler=everyone(CLIENTS)
    )
    np.testing.assert_allclose(
        flat(one.server.params), flat(other.server.params), rtol=1e-5
    )


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
    ("op", "zero"),
    [
        (COUNT._replace(estimate=COUNT.transpose), True),
        (COUNT, False),
    ],
    ids=["means", "medians"],
)
def test_variates_keep_their_sum_only_where_reading_is_linear(op, zero):
    algorithm = algorithms.fedsketchgate(
        loss, sketch=op, client_rate=RATE, server_rate=0.3, gain=1 / STEPS
    )
    state, _ = run(algorithm, sampler=everyone(CLIENTS))
    variates = np.asarray(jax.vmap(flat)(state.clients.local))
    scale = np.abs(variates).max()
    assert scale > 0.01
    assert (np.abs(variates.sum(0)).max() < 1e-4 * scale) == zero
    assert (op.estimate is op.transpose) == zero


def test_reading_one_row_is_linear():
    op = sketch.count_sketch(36, rows=1)
    assert op.estimate is op.transpose


ROWS, DRAWS, LENGTH, COLUMNS = 5, 1000, 100, 20
DRAW = np.random.default_rng(0)
VECTORS = {
    "power law": DRAW.choice([-1.0, 1.0], LENGTH) / np.arange(1.0, LENGTH + 1),
    "dense": DRAW.normal(size=LENGTH),
}


class Error(NamedTuple):
    """The error of a vector's way through a channel, over keys, relative to it.

    Attributes:
      bias: its mean along the vector.
      doubt: the standard error of that.
      energy: its mean square.
    """

    bias: float
    doubt: float
    energy: float


@functools.cache
def errors(m):
    """Returns the errors of channels with m heavy values, by name and by vector."""
    op = sketch.count_sketch(COLUMNS, ROWS)
    ways = {"exact": channels.heaprix(op, m), "privix": channels.sketched(op)}

    @quickly
    def received(keys, vectors):
        def of_a_vector(key, x):
            keys = Keys(key, key, key)
            ends = {
                name: single_client(channel, x, keys) for name, channel in ways.items()
            }
            return {name: end.delivery.estimate for name, end in ends.items()}

        return jax.vmap(jax.vmap(of_a_vector, (None, 0)), (0, None))(keys, vectors)

    keys = jax.random.split(jax.random.key(3), DRAWS)
    vectors = np.stack([*VECTORS.values()]).astype(np.float32)
    sizes, by_name = (vectors.astype(np.float64) ** 2).sum(-1), {}
    for name, arrived in received(keys, vectors).items():
        gaps = np.asarray(arrived, np.float64) - vectors
        along, energy = (gaps * vectors).sum(-1) / sizes, (gaps**2).sum(-1) / sizes
        facts = along.mean(0), along.std(0) / DRAWS**0.5, energy.mean(0)
        by_name[name] = dict(zip(VECTORS, map(Error, *facts), strict=True))
    return by_name


def test_heaprix_becomes_exact_as_m_grows_to_d_and_privix_does_not():
    few, all_ = (
        [errors(m)[name]["power law"].energy for name in ("exact", "privix")]
        for m in (COLUMNS, LENGTH)
    )
    assert few[0] < few[1] and all_[0] < 1e-10 and all_[1] > 1e-3


def test_heaprix_with_the_papers_shared_hashes_is_biased_on_dense_vectors():
    """Corollary 1 says that it is not: see `channels.heaprix` for why."""
    bias, doubt, _ = errors(COLUMNS)["exact"]["dense"]
    assert bias < -0.05 and abs(bias) > 20 * doubt
    assert abs(errors(COLUMNS)["exact"]["power law"].bias) < 0.01


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"query": "heaprics"}, "Did you mean 'heaprix'"),
        ({"query": "heaprix", "values": "exakt"}, "Did you mean 'exact'"),
        ({"query": "heaprix", "sketch": sketch.srht(8)}, "messages of shape"),
        ({"query": "heaprix", "sketch": sketch.identity()}, "count sketch"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, words):
    given = {"sketch": COUNT, "client_rate": RATE, "server_rate": 1.0} | options
    with refused(match=words):
        algorithms.fedsketch(loss, **given)
