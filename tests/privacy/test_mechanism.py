"""What a mechanism promises holds in the engine, for any algorithm."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine, sketch
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Algorithm
from fl_sketch.engine import costs as traffic
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local
from tests.meshes import mesh_of
from tests.privacy.noise import CLIENTS, GAUSSIAN, GUARDS, C, Z, fits
from tests.quadratics import (
    ALGORITHMS,
    COUNT,
    PARAMS,
    SGD,
    STEPS,
    D,
    fetch,
    flat,
    loss,
    optima,
)
from tests.simulation import KEY, cohort_of, compiled, with_cohort

ALL = cohort_of(range(CLIENTS))
NOBODY = cohort_of(range(CLIENTS), np.zeros(CLIENTS), 1.0)
DATA = np.asarray(optima(CLIENTS))
# One of each way to send: whole, two exchanges, with memory, raw sketches.
WAYS = ("fedavg", "heaprix", "ef21", "fetch_sgd")


def private(name, guard=GAUSSIAN):
    return ALGORITHMS[name]._replace(mechanism=guard)


@pytest.mark.parametrize("name", WAYS)
def test_no_bound_and_no_noise_is_no_mechanism(name):
    nothing = mechanism.central(
        clipping.clip(float("inf")), noise_multiplier=0.0, denominator=CLIENTS
    )
    state, report = with_cohort(private(name, nothing), ALL)
    expected, plain = with_cohort(ALGORITHMS[name], ALL)
    chex.assert_trees_all_close(state, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        report.simulator_only.diagnostics["loss"],
        plain.simulator_only.diagnostics["loss"],
        rtol=1e-5,
    )
    assert not report.simulator_only.diagnostics["mechanism_rejected"].any()


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        ("heaprix", "central"),
        ("ef21", "central"),
        ("fetch_sgd", "central"),
        ("safl", "distributed"),
        ("gradient_tracking", "adaptive"),
    ],
)
def test_clients_may_be_spread_and_chunked_in_any_way(name, guard):
    algorithm = private(name, GUARDS[guard])
    reference, report = with_cohort(algorithm, ALL)
    assert np.isfinite(flat(reference.server.params)).all()
    state, other = with_cohort(algorithm, ALL, devices=4, chunk=2)
    chex.assert_trees_all_close(state, reference, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(other, report, rtol=1e-4, atol=1e-4)


def test_the_noise_in_a_round_is_one_draw_on_the_sum():
    # Nobody comes: the step of sgd(1) is minus the noise over r, once, not per device.
    algorithm = Algorithm(
        local.one_gradient(loss), channels.exact(), optax.sgd(1.0), GAUSSIAN
    )
    one_round = engine.make_round(algorithm, fetch, mesh_of(4, "clients"))
    state = engine.initial_state(algorithm, PARAMS, CLIENTS)

    @compiled
    def many(state):
        def step(state, _):
            state, report = one_round(state, KEY, NOBODY, DATA)
            return state, (flat(state.server.params), report)

        return jax.lax.scan(step, state, length=700)[1]

    after, report = jax.device_get(many(state))
    steps = -np.diff(after, axis=0, prepend=flat(PARAMS)[None])
    assert fits(CLIENTS * steps, Z * C)
    assert not report.simulator_only.answered.any()
    assert not report.simulator_only.diagnostics["mechanism_signal_energy"].any()


@pytest.mark.parametrize(
    ("name", "guard"),
    [("safl", "central"), ("safl", "distributed"), ("gradient_tracking", "adaptive")],
)
def test_an_empty_cohort_is_a_round_like_any_other(name, guard):
    state, report = with_cohort(private(name, GUARDS[guard]), NOBODY)
    assert np.isfinite(flat(state.server.params)).all()
    chex.assert_tree_all_finite(report)
    assert int(state.server.round) == 5


def test_a_release_is_withheld_from_a_cohort_that_is_too_small():
    x = flat(PARAMS)
    for people, moves in [(4, False), (5, True)]:
        cohort = cohort_of(range(6), np.arange(6) < people, 6.0)
        state, report = with_cohort(
            private("safl", GUARDS["distributed"]), cohort, rounds=1
        )
        assert (flat(state.server.params) != x).any() == moves
        assert bool(report.released["withheld"][0]) is not moves


BOUNDED = {
    bound: Algorithm(
        local.sgd_steps(loss, SGD),
        channels.exact(),
        optax.sgd(1.0),
        mechanism.central(bound(C), noise_multiplier=Z, denominator=CLIENTS),
    )
    for bound in (clipping.clip, clipping.normalise)
}


def contribution(algorithm, o, client=0):
    """Returns by how much one client with this optimum moves the sum of messages."""
    data = DATA.copy()
    data[client] = o
    others = cohort_of(range(CLIENTS), np.arange(CLIENTS) != client, CLIENTS)
    there, report = with_cohort(algorithm, ALL, rounds=1, data=data)
    away, _ = with_cohort(algorithm, others, rounds=1, data=data)
    moved = flat(there.server.params) - flat(away.server.params)
    return CLIENTS * float(np.linalg.norm(moved)), report


@pytest.mark.parametrize("size", [0.0, 1e-2, 1.0, 1e3, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("bound", BOUNDED)
def test_one_client_moves_the_sum_by_no_more_than_c(size, bound):
    found, report = contribution(BOUNDED[bound], np.full(D, size))
    assert found <= C * 1.001
    facts = report.simulator_only.diagnostics
    assert float(facts["mechanism_rejected"][0]) == (not size < 1e18)
    assert np.isfinite(facts["loss"]).all()


def test_the_denominator_is_not_the_number_of_those_who_came():
    algorithm = private("safl")
    plain, _ = with_cohort(algorithm, ALL)
    # A cohort that claims another denominator, and weights that are not alike.
    claims = cohort_of(range(CLIENTS), [5.0, 0.2, 1, 1, 1, 1], 0.1)
    odd, _ = with_cohort(algorithm, claims)
    chex.assert_trees_all_equal(plain.server, odd.server)


def test_a_cohort_may_be_larger_than_the_root_of_what_32_bits_hold():
    guard = mechanism.central(
        clipping.clip(C), noise_multiplier=0.0, denominator=60_000
    )
    facts = guard.release((), 0, {"w": jnp.full(4, 30_000.0)}, None).facts
    assert float(facts["signal_energy"]) == pytest.approx(1.0)


def test_a_nan_is_rejected_counted_and_kept_out_of_everything():
    data = DATA.copy()
    data[2] = np.nan
    state, report = with_cohort(private("heaprix"), ALL, data=data)
    others = cohort_of(range(CLIENTS), np.arange(CLIENTS) != 2, CLIENTS)
    without, _ = with_cohort(private("heaprix"), others)
    chex.assert_trees_all_close(state.server, without.server, rtol=1e-5, atol=1e-6)
    facts = report.simulator_only.diagnostics
    assert facts["mechanism_rejected"].tolist() == [2.0] * 5  # in two exchanges
    assert np.isfinite(facts["loss"]).all()


@pytest.mark.parametrize(
    ("name", "releases"),
    [("safl", 1), ("fedavg", 1), ("ef21", 1), ("heaprix", 2), ("sketched_sgd", 2)],
)
def test_releases_are_counted_while_tracing(name, releases):
    talk = traffic.measure_traffic(private(name), PARAMS, jnp.zeros((STEPS, D)))
    assert len(talk.sent) == releases


def test_an_adaptive_threshold_finds_the_quantile_and_stops_there():
    data = jnp.arange(1.0, 201.0)[:, None] * jnp.eye(D)[0]
    algorithm = Algorithm(
        local.one_gradient(loss),
        channels.exact(),
        optax.sgd(1e-9),
        mechanism.adaptive(
            1.0, noise_multiplier=0.5, denominator=200, quantile=0.7, count_noise=10.0
        ),
    )
    one_round = jax.jit(engine.make_round(algorithm, fetch, mesh_of(1, "clients")))
    run = compiled(
        functools.partial(engine.run_rounds, one_round, engine.everyone(200), most=150)
    )
    state = engine.initial_state(algorithm, PARAMS, 200)
    state, report = run(state, KEY, data, 150)
    assert float(state.server.guard) == pytest.approx(140, rel=0.1)
    assert report.released["threshold"][0] == 1.0


def test_a_second_exchange_has_no_adaptive_threshold():
    with pytest.raises(ValueError, match="one exchange"):
        traffic.measure_traffic(
            private("heaprix", GUARDS["adaptive"]), PARAMS, jnp.zeros((STEPS, D))
        )


def linear_form(z, bound=clipping.clip):
    channel, guard = mechanism.before_sketch(
        COUNT, PARAMS, bound(C), noise_multiplier=z, denominator=CLIENTS
    )
    return Algorithm(local.sgd_steps(loss, SGD), channel, optax.sgd(1.0), guard)


def test_bounded_before_the_sketch_is_the_sketch_of_the_private_sum():
    """R(sum of bounded updates) without noise; with it, R of noise on the updates."""
    state, _ = with_cohort(linear_form(0.0), ALL, rounds=1)
    keys = round_keys(KEY, 3, 0)

    @compiled
    def expected_of(data):
        bounded, _ = jax.vmap(clipping.clip(C).apply)((1 - 0.9**STEPS) * -data)
        shared = round_keys(KEY, 0, 0).shared
        return -COUNT.transpose(shared, COUNT.apply(shared, bounded.mean(0)), D)

    np.testing.assert_allclose(
        flat(state.server.params), expected_of(DATA), rtol=1e-4, atol=1e-6
    )

    guard = linear_form(Z).mechanism
    assert guard.drawn == D

    def draw(server):
        own = keys._replace(server=server)
        return guard.release((), 0, COUNT.zeros(), own).mean.ravel()

    @compiled
    def many_and_columns(keys_of_noise):
        columns = jax.vmap(lambda e: COUNT.apply(keys.shared, e).ravel())(jnp.eye(D))
        return jax.vmap(draw)(keys_of_noise), columns

    # R maps the noise linearly: each entry of a row sums the noise of a bucket.
    many, columns = jax.device_get(many_and_columns(jax.random.split(KEY, 400)))
    assert many[0].size == COUNT.size()
    expected = Z * C / CLIENTS * np.linalg.norm(columns, axis=0)
    np.testing.assert_allclose(np.std(many, axis=0), expected, rtol=0.15)


def test_a_nan_is_rejected_in_the_linear_form_too():
    data = DATA.copy()
    data[2] = np.nan
    state, report = with_cohort(linear_form(Z), ALL, data=data)
    assert np.isfinite(flat(state.server.params)).all()
    assert report.simulator_only.diagnostics["mechanism_rejected"].tolist() == [1.0] * 5


def test_a_sketch_can_make_an_update_longer_so_its_bound_is_not_the_update_s():
    ones = np.full(D, D**-0.5, np.float32)

    @compiled
    @jax.vmap
    def length(number):
        key = round_keys(KEY, number, 0).shared
        return jnp.linalg.norm(sketch.count_sketch(4).apply(key, ones))

    assert length(np.arange(20)).max() > 1.2
    guarded = GAUSSIAN.encode((), 0, 100 * ones, None).summand
    assert float(jnp.linalg.norm(guarded)) <= C * 1.001


@pytest.mark.parametrize(
    ("limit", "options", "words"),
    [
        (1.0, {"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        (1.0, {"noise_multiplier": float("nan")}, "noise_multiplier=nan"),
        (1.0, {"denominator": 0}, "denominator=0"),
        (1.0, {"denominator": float("inf")}, "denominator=inf"),
        (float("inf"), {}, "threshold=inf"),
    ],
)
def test_what_cannot_be_promised_is_refused(limit, options, words):
    options = {"noise_multiplier": 1.0, "denominator": 2.0} | options
    with pytest.raises(ValueError, match=words):
        mechanism.central(clipping.clip(limit), **options)
