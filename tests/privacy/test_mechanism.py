"""What a mechanism promises holds in the engine, for any algorithm."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Algorithm
from fl_sketch.engine import costs as traffic
from fl_sketch.privacy import clipping, gaussian, mechanism
from fl_sketch.transforms import local
from tests.meshes import mesh_of
from tests.privacy.noise import CLIENTS, GAUSSIAN, GUARDS, C, Z, fits, measured_noise
from tests.quadratics import ALGORITHMS, PARAMS, STEPS, D, fetch, flat, loss, optima
from tests.quick import some_fast
from tests.simulation import KEY, cohort_of, compiled, with_cohort

ALL = cohort_of(range(CLIENTS))
NOBODY = cohort_of(range(CLIENTS), np.zeros(CLIENTS), 1.0)
DATA = np.asarray(optima(CLIENTS))


def private(name, guard=GAUSSIAN):
    return ALGORITHMS[name]._replace(mechanism=guard)


def test_no_bound_and_no_noise_is_no_mechanism():
    nothing = mechanism.central(
        clipping.clip(float("inf")), noise_multiplier=0.0, denominator=CLIENTS
    )
    state, report = with_cohort(private("heaprix", nothing), ALL)
    expected, _ = with_cohort(ALGORITHMS["heaprix"], ALL)
    chex.assert_trees_all_close(state, expected, rtol=1e-6, atol=1e-6)
    assert not report.simulator_only.diagnostics["mechanism_rejected"].any()


SPREAD = {"ef21": "central", "safl": "shares", "gradient_tracking": "adaptive"}


@pytest.mark.slow
@pytest.mark.parametrize("name", some_fast(SPREAD, ["safl"]))
def test_clients_may_be_spread_and_chunked_in_any_way(name):
    algorithm = private(name, GUARDS[SPREAD[name]])
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


def test_the_denominator_is_not_the_number_of_those_who_came():
    algorithm = private("safl")
    plain, _ = with_cohort(algorithm, ALL)
    # A cohort that claims another denominator, and weights that are not alike.
    claims = cohort_of(range(CLIENTS), [5.0, 0.2, 1, 1, 1, 1], 0.1)
    odd, _ = with_cohort(algorithm, claims)
    chex.assert_trees_all_equal(plain.server, odd.server)


@pytest.mark.parametrize(
    ("name", "guard", "exchanges"), [("heaprix", "central", 2), ("safl", "shares", 1)]
)
def test_a_nan_is_rejected_counted_and_kept_out_of_everything(name, guard, exchanges):
    data = DATA.copy()
    data[2] = np.nan
    algorithm = private(name, GUARDS[guard])
    state, report = with_cohort(algorithm, ALL, data=data)
    assert np.isfinite(flat(state.server.params)).all()
    facts = report.simulator_only.diagnostics
    assert facts["mechanism_rejected"].tolist() == [exchanges] * 5
    assert np.isfinite(facts["loss"]).all()
    if guard == "central":
        others = cohort_of(range(CLIENTS), np.arange(CLIENTS) != 2, CLIENTS)
        without, _ = with_cohort(algorithm, others)
        chex.assert_trees_all_close(state.server, without.server, rtol=1e-5, atol=1e-6)


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


def test_the_noise_is_what_the_accountant_assumed():
    noise = measured_noise(GAUSSIAN, 10_000, jnp.zeros(4))
    assert fits(noise, Z * C)
    between = np.corrcoef(np.asarray(noise).T)
    assert np.abs(between - np.eye(4)).max() < 0.05
    later = np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]
    assert abs(later) < 0.05


def test_adaptive_noise_is_what_the_count_leaves_of_it():
    count_noise = 0.4  # most of what z = 0.7 allows
    guard = mechanism.adaptive(
        C, noise_multiplier=Z, denominator=CLIENTS, count_noise=count_noise
    )
    noise = measured_noise(guard, 10_000, (jnp.zeros(4), jnp.zeros(())))
    left = (Z**-2 - (2 * count_noise) ** -2) ** -0.5
    assert left > 2 * Z and fits(noise, left * C)


def test_noise_has_the_tail_that_the_accountant_knows(monkeypatch):
    """That of `gaussian.noise`, and not of jax.random.normal, which ends too soon."""
    monkeypatch.setattr(
        gaussian, "noise", lambda key, like, scale: jnp.full(like.shape, 11.0 * scale)
    )
    mean = GAUSSIAN.release((), 0, jnp.zeros(4), round_keys(KEY, 0, 0)).mean
    np.testing.assert_allclose(CLIENTS * mean, 11 * Z * C, rtol=0.01)


def test_no_two_exchanges_rounds_or_leaves_share_a_draw():
    like = {"a": jnp.zeros(3), "b": jnp.zeros(3)}

    def draw(exchange, number):
        keys = round_keys(KEY, number, 0)
        return GAUSSIAN.release((), exchange, like, keys).mean

    @compiled
    def all_draws():
        return [draw(e, n) for e in (0, 1) for n in (0, 1)]

    draws = all_draws()
    values = {np.asarray(leaf).tobytes() for d in draws for leaf in d.values()}
    assert len(values) == 8


def test_the_count_of_an_adaptive_threshold_has_a_draw_of_its_own():
    guard, zeros = GUARDS["adaptive"], (jnp.zeros(4), jnp.zeros(()))

    @compiled
    @jax.vmap
    def released(number):
        after = guard.release(guard.init(), 0, zeros, round_keys(KEY, number, 0))
        return jnp.append(after.mean, jnp.log(after.state))

    between = np.corrcoef(np.asarray(released(np.arange(2000))).T)
    assert np.abs(between - np.eye(5)).max() < 0.1


@pytest.mark.parametrize(("guard", "more"), [("central", 0), ("adaptive", 1)])
def test_a_count_is_a_bit_on_the_wire_and_a_number_with_noise(guard, more):
    assert GUARDS[guard].wire(160, 5) == 160 + more and GUARDS[guard].extra == more


@pytest.mark.parametrize(
    ("limit", "options", "words"),
    [
        (1.0, {"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        (1.0, {"noise_multiplier": float("nan")}, "noise_multiplier=nan"),
        (1.0, {"denominator": 0}, "denominator=0"),
        (1.0, {"denominator": float("inf")}, "denominator=inf"),
        (float("inf"), {}, "threshold=inf"),
        (float("inf"), {"bits": 16, "noise_multiplier": 0.0}, "threshold=inf"),
        (1.0, {"bits": 16, "smallest": -1}, "smallest=-1"),
        (1.0, {"bits": 16, "most": -3}, "most=-3"),
    ],
)
def test_what_cannot_be_promised_is_refused(limit, options, words):
    options = {"noise_multiplier": 1.0, "denominator": 2.0} | options
    make = mechanism.integers if "bits" in options else mechanism.central
    with pytest.raises(ValueError, match=words):
        make(clipping.clip(limit), **options)
