"""A round is what the algorithm says, however the clients are spread and chunked."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine, sketch
from fl_sketch.core.protocols import Algorithm, Channel, Delivery
from fl_sketch.core.wire import byte_count
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local
from tests.meshes import mesh_of
from tests.oracles import rounds as oracle
from tests.quadratics import (
    ALGORITHMS,
    COUNT,
    SGD,
    STEPS,
    flat,
    loss,
    optima,
)
from tests.quick import some_fast
from tests.simulation import KEY, cohort_of, simulate, with_cohort

QUICK = ("safl", "heaprix", "ef21", "gradient_tracking")
every_algorithm = pytest.mark.parametrize("name", some_fast(ALGORITHMS, QUICK))
CLIENTS, FIVE = 6, cohort_of([0, 1, 2, 3, 4])
DATA = np.asarray(optima(CLIENTS))


def five(key):
    """Returns a cohort of all clients but the last one."""
    del key
    return FIVE


def run(name, **options):
    ended = simulate(ALGORITHMS[name], sampler=five, data=DATA, **options)
    return jax.device_get(ended)


@functools.cache
def alone(name):
    """Returns states and reports after some rounds of one client after the other."""
    return {rounds: run(name, rounds=rounds) for rounds in (1, 2, 4, 5, 6, 20)}


def spread(name, cohort, **options):
    """Returns what came of rounds of five places, by twos on two devices."""
    return with_cohort(ALGORITHMS[name], cohort, devices=2, chunk=2, **options)


@every_algorithm
def test_clients_may_be_spread_and_chunked_in_any_way(name):
    reference, report = alone(name)[20]
    assert report.simulator_only.answered.tolist() == [[True] * 5] * 20
    assert np.isfinite(flat(reference.server.params)).all()
    state, other = spread(name, FIVE, rounds=20)
    chex.assert_trees_all_close(state, reference, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(other, report, rtol=1e-5, atol=1e-5)


@every_algorithm
def test_one_run_is_like_another_and_rounds_may_be_cut(name):
    whole, _ = alone(name)[4]
    again, _ = run(name, rounds=4)
    chex.assert_trees_all_equal(whole, again)

    first, _ = alone(name)[1]
    both, _ = run(name, rounds=3, start=first)
    chex.assert_trees_all_equal(both, whole)


def test_fedavg_is_the_arithmetic_of_its_steps():
    # Gradient x - o, three steps of 0.1 from zero: x_K = (1 - 0.9^3) o.
    algorithm = Algorithm(local.sgd_steps(loss, SGD), channels.exact(), optax.sgd(1.0))
    state, report = simulate(algorithm, clients=4, rounds=1)
    expected = (1 - 0.9**STEPS) * optima(4).mean(0)
    np.testing.assert_allclose(flat(state.server.params), expected, rtol=1e-5)
    assert int(state.server.round) == 1
    assert byte_count(report.simulator_only.bytes_up)[0] == 4 * 16
    first_losses = jnp.sum(optima(4) ** 2, axis=1) / 2
    assert float(report.simulator_only.diagnostics["loss"][0]) == pytest.approx(
        float(first_losses.mean()), rel=1e-5
    )


@pytest.mark.parametrize("name", ["fedavg", "safl", "sadl", "heaprix", "ef21"])
def test_engine_agrees_with_a_loop_over_clients(name):
    state, _ = alone(name)[6]
    expected = oracle.run(name, DATA[FIVE.ids], 6, KEY)
    np.testing.assert_allclose(
        flat(state.server.params), expected, rtol=1e-4, atol=1e-5
    )


POISONED = DATA.copy()
POISONED[[1, 3]] = np.nan


@every_algorithm
def test_order_and_places_without_weight_do_not_matter(name):
    before, _ = alone(name)[2]
    in_order = cohort_of([0, 2, 5, 1, 3], [1, 1, 1, 0, 0])
    reference, report = spread(name, in_order, start=before, rounds=1)
    turned = cohort_of([5, 0, 2, 1, 3], [1, 1, 1, 0, 0])
    among = cohort_of([0, 1, 2, 3, 5], [1, 0, 1, 0, 1])
    for cohort, data in ((turned, DATA), (among, POISONED)):
        state, other = spread(name, cohort, start=before, rounds=1, data=data)
        chex.assert_trees_all_close(state, reference, rtol=1e-5, atol=1e-6)
        chex.assert_trees_all_close(
            other.simulator_only.diagnostics,
            report.simulator_only.diagnostics,
            rtol=1e-5,
            atol=1e-6,
        )
        for seen in (other.simulator_only, report.simulator_only):
            assert sorted(seen.clients[seen.answered].tolist()) == [0, 2, 5]


@pytest.mark.parametrize("name", ["ef21", "gradient_tracking"])
def test_absent_clients_keep_their_state(name):
    """Those who are not asked, and those in a place without weight."""
    before, _ = alone(name)[2]
    cohort = cohort_of([1, 4, 0, 3, 2], [1, 1, 0, 0, 0])
    after, _ = spread(name, cohort, start=before, rounds=1)
    old, new = (
        np.concatenate([leaf.reshape(6, -1) for leaf in jax.tree.leaves(s.clients)], 1)
        for s in (before, after)
    )
    changed = np.any(old != new, axis=1)
    assert changed.tolist() == [False, True, False, False, True, False]


def test_an_empty_cohort_changes_nothing_but_the_round():
    before, _ = alone("gradient_tracking")[2]
    nobody = cohort_of([0, 1, 2, 3, 4], np.zeros(5), 3.0)
    after, report = spread("gradient_tracking", nobody, start=before, rounds=1)
    chex.assert_trees_all_equal(after.clients, before.clients)
    chex.assert_trees_all_equal(after.server.params, before.server.params)
    assert int(report.simulator_only.answered.sum()) == 0
    assert int(after.server.round) == 3


def leaky(what):
    """Returns channels whose estimate is, or depends on, this client's own update."""

    def protocol(update, memory, keys, round):
        del round
        average = yield update
        estimate = {
            "own update": update,
            "a part of it": jax.tree.map(lambda m, u: m + 0 * u, average, update),
            "own key": jax.tree.map(
                lambda m: m + jax.random.normal(keys.own, m.shape), average
            ),
        }[what]
        return Delivery(estimate, update), memory

    return Channel(protocol)


@pytest.mark.parametrize("what", ["own update", "a part of it", "own key"])
def test_a_leak_around_the_mean_is_refused_when_the_round_is_built(what):
    algorithm = Algorithm(local.sgd_steps(loss, SGD), leaky(what), optax.sgd(1.0))
    with pytest.raises(ValueError, match="from means only"):
        simulate(algorithm)


def counting(update, memory, keys, round):
    """Says what the server knows of its cohort, as an estimate."""
    del keys
    average = yield update
    sizes = jnp.stack([round.denominator, round.present, round.population])
    known = {"w": jnp.broadcast_to(sizes, (4, 3)), "b": jnp.zeros(4)}
    return Delivery(
        jax.tree.map(lambda k, a: k + 0 * a, known, average), update
    ), memory


@pytest.mark.parametrize("private", [False, True])
def test_under_a_mechanism_nobody_learns_who_was_present(private):
    algorithm = Algorithm(
        local.sgd_steps(loss, SGD), Channel(counting), optax.sgd(-1.0)
    )
    if private:
        bounded = clipping.clip(1.0)
        noise = mechanism.central(bounded, noise_multiplier=1.0, denominator=4)
        algorithm = algorithm._replace(mechanism=noise)
    few = cohort_of([0, 1, 2, 3, 5], [1, 0, 0, 1, 0], 4.0)
    state, _ = with_cohort(algorithm, few, rounds=1)
    assert state.server.params["w"][0].tolist() == [4, 4 if private else 2, 4]


def test_two_exchanges_and_their_bits_are_counted():
    _, report = alone("heaprix")[1]
    assert byte_count(report.simulator_only.bytes_up)[0] == 4 * (COUNT.size() + 4)
    # Indices of 4 bits each.
    assert byte_count(report.simulator_only.bytes_reply)[0] == 4 * 4 / 8


def test_memory_does_not_grow_with_the_cohort_for_stateless_algorithms():
    d = 100_000
    params = {"x": jnp.zeros(d)}

    def big_loss(params, batch):
        return jnp.sum((params["x"] - batch) ** 2) / 2

    def big_fetch(data, client, plan, key):
        del plan, key
        return jnp.broadcast_to(data[client], (2,))

    algorithm = Algorithm(
        local.sgd_steps(big_loss, SGD),
        channels.sketched(sketch.count_sketch(1000)),
        optax.adam(0.1),
    )

    def planned(clients):
        one_round = jax.jit(
            engine.make_round(algorithm, big_fetch, mesh_of(1, "clients"), chunk=2)
        )
        state = engine.initial_state(algorithm, params, clients)
        run = jax.jit(
            functools.partial(
                engine.run_rounds, one_round, engine.everyone(clients), most=2
            )
        )
        lowered = run.lower(state, KEY, jnp.zeros(clients), 2)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    few, many = planned(8), planned(512)
    assert many <= 1.02 * few + 512 * 256
    assert many < 4 * d * 20
