"""A round is what the algorithm says, however the clients are spread and chunked."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine, local, sketch
from fl_sketch.engine.cohort import padded
from fl_sketch.keys import Purpose, for_purpose, round_keys
from fl_sketch.protocols import Algorithm, Channel, Delivery
from tests.meshes import mesh_of
from tests.oracles import rounds as oracle
from tests.quadratics import (
    ALGORITHMS,
    COUNT,
    PARAMS,
    RATE,
    SGD,
    STEPS,
    fetch,
    flat,
    loss,
    optima,
)
from tests.simulation import KEY, compiled, simulate

# All tests of an algorithm in turn, which share its programs.
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS, scope="module")


@every_algorithm
def test_clients_may_be_spread_and_chunked_in_any_way(name):
    reference, report = simulate(ALGORITHMS[name], rounds=20)
    assert report.simulator_only.answered.tolist() == [[True] * 6] * 20
    assert jnp.isfinite(flat(reference.server.params)).all()
    for devices, chunk in [(2, 3), (8, 1)]:
        state, other = simulate(
            ALGORITHMS[name], rounds=20, devices=devices, chunk=chunk
        )
        chex.assert_trees_all_close(state, reference, rtol=1e-5, atol=1e-5)
        chex.assert_trees_all_close(other, report, rtol=1e-5, atol=1e-5)


@every_algorithm
def test_updates_may_be_kept_or_made_again(name):
    kept, report = simulate(ALGORITHMS[name], chunk=3, devices=2)
    again, other = simulate(ALGORITHMS[name], chunk=3, devices=2, recompute=True)
    chex.assert_trees_all_close(again, kept, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(other, report, rtol=1e-5, atol=1e-6)


@every_algorithm
def test_one_run_is_like_another_and_rounds_may_be_cut(name):
    whole, _ = simulate(ALGORITHMS[name], rounds=4)
    again, _ = simulate(ALGORITHMS[name], rounds=4)
    chex.assert_trees_all_equal(whole, again)

    first, _ = simulate(ALGORITHMS[name], rounds=1)
    both, _ = simulate(ALGORITHMS[name], rounds=3, start=first)
    chex.assert_trees_all_equal(both, whole)


@pytest.mark.parametrize("rows", ["of the cohort", "filled up"])
@pytest.mark.parametrize("name", ["safl", "ef21"])
def test_batches_may_come_as_a_plan(name, rows):
    algorithm, data = ALGORITHMS[name], optima(6)
    cohort = cohort_of([0, 2, 5])

    def round_with(fetch):
        mesh = mesh_of(2, "clients")
        return compiled(engine.make_round(algorithm, fetch, mesh, recompute=True))

    ids = cohort.ids if rows == "of the cohort" else padded(cohort, 2).ids
    plan = jax.vmap(lambda client: fetch(data, client, None, KEY))(ids)
    planned, found = (
        function(engine.initial_state(algorithm, PARAMS, 6), KEY, cohort, *rest)
        for function, rest in (
            (round_with(lambda data, client, plan, key: plan), (None, plan)),
            (round_with(fetch), (data,)),
        )
    )
    chex.assert_trees_all_equal(planned, found)


def test_fedavg_is_the_arithmetic_of_its_steps():
    # Gradient x - o, three steps of 0.1 from zero: x_K = (1 - 0.9^3) o.
    algorithm = Algorithm(local.sgd_steps(loss, SGD), channels.exact(), optax.sgd(1.0))
    state, report = simulate(algorithm, clients=4, rounds=1)
    expected = (1 - 0.9**STEPS) * optima(4).mean(0)
    np.testing.assert_allclose(flat(state.server.params), expected, rtol=1e-5)
    assert int(state.server.round) == 1
    assert int(report.simulator_only.bytes_up[0]) == 4 * 16
    first_losses = jnp.sum(optima(4) ** 2, axis=1) / 2
    assert float(report.simulator_only.diagnostics["loss"][0]) == pytest.approx(
        float(first_losses.mean()), rel=1e-5
    )


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "safl", "heaprix", "ef21"])
def test_engine_agrees_with_a_loop_over_clients(name):
    clients, rounds = 5, 6
    state, _ = simulate(ALGORITHMS[name], clients=clients, rounds=rounds, chunk=2)
    expected = oracle.run(name, np.asarray(optima(clients)), rounds, KEY)
    np.testing.assert_allclose(
        flat(state.server.params), expected, rtol=1e-4, atol=1e-5
    )


def cohort_of(ids, weights=None):
    weights = jnp.ones(len(ids)) if weights is None else jnp.asarray(weights)
    return engine.Cohort(jnp.asarray(ids, jnp.int32), weights, jnp.sum(weights))


@every_algorithm
def test_order_and_places_without_weight_do_not_matter(name):
    algorithm, data = ALGORITHMS[name], optima(6)
    one_round = compiled(
        engine.make_round(algorithm, fetch, mesh_of(2, "clients"), chunk=2)
    )
    state = engine.initial_state(algorithm, PARAMS, 6)
    reference, report = one_round(state, KEY, cohort_of([0, 2, 5]), data)
    turned, _ = one_round(state, KEY, cohort_of([5, 0, 2]), data)
    poisoned = data.at[jnp.array([1, 3])].set(jnp.nan)
    extra = cohort_of([0, 1, 2, 3, 5], [1.0, 0.0, 1.0, 0.0, 1.0])
    with_extra, other = one_round(state, KEY, extra, poisoned)
    chex.assert_trees_all_close(turned, reference, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(with_extra, reference, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(
        other.simulator_only.diagnostics,
        report.simulator_only.diagnostics,
        rtol=1e-5,
        atol=1e-6,
    )
    assert (
        other.simulator_only.clients[other.simulator_only.answered].tolist()
        == report.simulator_only.clients.tolist()
        == [0, 2, 5]
    )


@pytest.mark.parametrize("name", ["sketched_sgd", "ef21", "gradient_tracking"])
def test_absent_clients_keep_their_state(name):
    algorithm = ALGORITHMS[name]
    one_round = compiled(engine.make_round(algorithm, fetch, mesh_of(4, "clients")))
    before, _ = simulate(algorithm, rounds=2, devices=4)
    after, _ = one_round(before, KEY, cohort_of([1, 4]), optima(6))
    old, new = (
        np.concatenate([leaf.reshape(6, -1) for leaf in jax.tree.leaves(s.clients)], 1)
        for s in (before, after)
    )
    changed = np.any(old != new, axis=1)
    assert changed.tolist() == [False, True, False, False, True, False]


def test_an_empty_cohort_changes_nothing_but_the_round():
    algorithm = ALGORITHMS["gradient_tracking"]
    one_round = compiled(engine.make_round(algorithm, fetch, mesh_of(2, "clients")))
    before, _ = simulate(algorithm, rounds=2, devices=2)
    nobody = engine.Cohort(jnp.arange(3), jnp.zeros(3), jnp.float32(3))
    after, report = one_round(before, KEY, nobody, optima(6))
    chex.assert_trees_all_equal(after.clients, before.clients)
    chex.assert_trees_all_equal(after.server.params, before.server.params)
    assert int(report.simulator_only.answered.sum()) == 0
    assert int(after.server.round) == 3


def leaky(what):
    """Returns channels whose estimate is, or depends on, this client's own update."""

    def talk(update, memory, keys, round):
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

    return Channel(talk)


@pytest.mark.parametrize("what", ["own update", "a part of it", "own key"])
def test_a_leak_around_the_mean_is_refused_when_the_round_is_built(what):
    algorithm = Algorithm(local.sgd_steps(loss, SGD), leaky(what), optax.sgd(1.0))
    with pytest.raises(ValueError, match="of means alone"):
        simulate(algorithm)


def test_a_channel_without_an_exchange_is_refused():
    def talk(update, memory, keys, round):
        del keys, round
        return Delivery(PARAMS, update), memory

    silent = Channel(talk)
    algorithm = Algorithm(local.sgd_steps(loss, SGD), silent, optax.sgd(1.0))
    with pytest.raises(TypeError, match="yield its messages, got none"):
        simulate(algorithm)


def test_keys_are_shared_or_own_as_their_names_say():
    one, other = round_keys(KEY, 3, 0), round_keys(KEY, 3, 1)
    same = functools.partial(np.array_equal)

    def data(key):
        return jax.random.key_data(key)

    assert same(data(one.shared), data(other.shared))
    assert same(data(one.server), data(other.server))
    assert not same(data(one.own), data(other.own))
    later = round_keys(KEY, 4, 0)
    for field in ("shared", "own", "server"):
        assert not same(data(getattr(one, field)), data(getattr(later, field)))
    purposes = [data(for_purpose(KEY, 0, purpose)).tobytes() for purpose in Purpose]
    assert len(set(purposes)) == len(Purpose)


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
        one_round = engine.make_round(
            algorithm, big_fetch, mesh_of(1, "clients"), chunk=2
        )
        state = engine.initial_state(algorithm, params, clients)
        run = jax.jit(
            functools.partial(
                engine.run_rounds, one_round, engine.everyone(clients), most=2
            )
        )
        lowered = run.lower(state, KEY, jnp.zeros(clients), 2)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert planned(512) <= 1.02 * planned(8) + 512 * 256
    assert planned(512) < 4 * d * 20


def test_gradient_tracking_reaches_the_optimum_of_unlike_clients():
    exact = Algorithm(
        local.tracked_steps(loss, rate=RATE, gain=1 / (RATE * STEPS)),
        channels.exact(),
        optax.sgd(0.6),
    )
    state, _ = simulate(exact, rounds=200)
    target = optima(6).mean(0)
    np.testing.assert_allclose(flat(state.server.params), target, atol=1e-3)


@pytest.mark.parametrize("name", ["safl", "ef21"])
def test_the_first_state_may_be_donated(name):
    state = engine.initial_state(ALGORITHMS[name], PARAMS, 3)
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(places)) == len(places)


def test_two_exchanges_and_their_bits_are_counted():
    _, report = simulate(ALGORITHMS["heaprix"], rounds=1)
    assert int(report.simulator_only.bytes_up[0]) == 4 * (COUNT.size() + 4)
    # Indices of 4 bits each.
    assert int(report.simulator_only.bytes_told[0]) == 4 * 4 / 8
