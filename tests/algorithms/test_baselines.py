"""The baselines: identities, a trajectory worked out by hand, and where they end."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, channels, engine, sketch, transforms
from fl_sketch.algorithms import catalog
from fl_sketch.core.protocols import Algorithm
from fl_sketch.core.wire import byte_count
from fl_sketch.engine import costs
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local
from tests.oracles import rounds
from tests.quadratics import CATALOGUE, PARAMS, STEPS, D, flat, loss, optima
from tests.quick import some_fast
from tests.simulation import simulate

CLIENTS, KEY = 6, jax.random.key(5)
OP = sketch.count_sketch(8, rows=3)


run = functools.partial(simulate, rounds=20, key=KEY)


@functools.cache
def end_of_the_twin(name):
    """Returns where plain distributed gradients end with this optimizer."""
    server = TWINS[name]
    return run(Algorithm(local.one_gradient(loss), channels.exact(), server))[0]


WHOLE = compressors.top_k(D)  # compresses nothing
EVERY = compressors.random_k(D)  # nor does this, and it is unbiased
TWINS = {
    "descent": optax.sgd(0.1),
    "momentum": optax.sgd(0.02, momentum=0.7),
    "AMSGrad": transforms.paper_amsgrad(0.05),
}
IDENTITIES = {
    "MARINA with p = 1 is gradient descent": (
        algorithms.marina(
            loss, compressor=compressors.random_k(2), server_rate=0.1, probability=1.0
        ),
        "descent",
    ),
    "MARINA without compression is gradient descent": (
        algorithms.marina(loss, compressor=EVERY, server_rate=0.1, probability=0.3),
        "descent",
    ),
    "FetchSGD with the identity and k = d is momentum SGD": (
        algorithms.fetchsgd(
            loss, sketch=sketch.identity(), server_rate=0.02, momentum=0.7, heavy=D
        ),
        "momentum",
    ),
    "EF21 with everything is its server": (
        algorithms.ef21(loss, compressor=WHOLE, server=TWINS["momentum"]), "momentum",
    ),
    "CD-Adam with everything is the paper's AMSGrad": (
        algorithms.cd_adam(loss, compressor=WHOLE, server_rate=0.05, b2=0.999),
        "AMSGrad",
    ),
    "SketchedSGD with k = d is SGD": (
        algorithms.sketched_sgd(loss, sketch=OP, server_rate=0.1, heavy=D), "descent",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IDENTITIES)
def test_where_nothing_is_lost_a_method_is_its_twin(name):
    algorithm, twin = IDENTITIES[name]
    ours, theirs = run(algorithm)[0], end_of_the_twin(twin)
    chex.assert_trees_all_close(
        ours.server.params, theirs.server.params, rtol=1e-4, atol=1e-5
    )


def test_sketched_sgd_conserves_what_it_asked_for():
    """Own values at the places that the mean sketch names leave the memory."""
    algorithm = algorithms.sketched_sgd(loss, sketch=OP, server_rate=0.0, heavy=4)
    state, _ = run(algorithm, rounds=1)
    memory = jax.vmap(flat)(state.clients.memory[0])
    gradients = -np.asarray(optima(CLIENTS))
    asked = np.all(np.asarray(memory) == 0, axis=0)
    assert asked.sum() == 4
    np.testing.assert_allclose(memory[:, ~asked], gradients[:, ~asked], rtol=1e-6)


def falling(rate):
    return optax.cosine_decay_schedule(rate, ROUNDS)


ROUNDS = 400
COCKTAIL = compressors.then(
    compressors.random_k(8, unbiased=False),
    compressors.top_k(4),
    compressors.nearest(8),
)
ENDS = {  # how near to the optimum, as a part of the distance at the start
    "marina": (1e-3, algorithms.marina(
        loss, compressor=compressors.random_k(4), server_rate=0.1, probability=0.2
    )),
    "ef21": (1e-3, algorithms.ef21(
        loss, compressor=compressors.top_k(4), server=optax.sgd(0.1)
    )),
    "cd_adam": (0.05, algorithms.cd_adam(
        loss, compressor=compressors.scaled_sign(), server_rate=falling(0.3)
    )),
    "qsgd": (0.02, algorithms.qsgd(loss, levels=8, server=optax.sgd(falling(0.2)))),
    "ef_sign_sgd": (0.02, algorithms.ef_sign_sgd(
        loss, client_rate=0.1, server_rate=falling(0.5)
    )),
    "cocktail_sgd": (0.02, algorithms.cocktail_sgd(
        loss, cocktail=COCKTAIL, client_rate=0.1, server_rate=falling(0.3)
    )),
    "fetchsgd": (0.02, algorithms.fetchsgd(
        loss, sketch=sketch.count_sketch(12, rows=3), server_rate=0.03, momentum=0.5,
        heavy=4,
    )),
    "sketched_sgd": (0.02, algorithms.sketched_sgd(
        loss, sketch=OP, server_rate=falling(0.1), heavy=4
    )),
}  # fmt: skip


QUICK = ("ef21", "fetchsgd", "qsgd")


@pytest.mark.parametrize("name", some_fast(ENDS, QUICK))
def test_unlike_clients_end_at_their_common_optimum(name):
    near, algorithm = ENDS[name]
    state, _ = run(algorithm, rounds=ROUNDS)
    target = np.asarray(optima(CLIENTS)).mean(0)
    gap = np.linalg.norm(np.asarray(flat(state.server.params)) - target)
    assert gap <= near * np.linalg.norm(target)


def test_a_majority_of_signs_ends_at_the_median_of_unlike_clients():
    """Its published floor: votes count heads, and the mean is elsewhere."""
    algorithm = algorithms.sign_sgd(loss, server_rate=falling(0.1))
    state, _ = run(algorithm, rounds=ROUNDS, clients=5)
    points = np.asarray(optima(5))
    ours = np.asarray(flat(state.server.params))
    np.testing.assert_allclose(ours, np.median(points, axis=0), atol=0.02)
    assert np.abs(ours - points.mean(0)).max() > 0.1


def test_one_bit_adam_is_that_of_the_paper():
    """Algorithm 1 in numpy, with optax's correction of the bias."""
    warmup, rounds, rate, b1, b2 = 4, 15, 0.05, 0.9, 0.999
    points = np.asarray(optima(CLIENTS), np.float64)
    x, m, v = np.zeros(D), np.zeros(D), np.zeros(D)
    own, error = np.zeros((CLIENTS, D)), np.zeros(D)

    def sign(y):
        return np.abs(y).mean() * np.where(y < 0, -1.0, 1.0)

    for t in range(1, rounds + 1):
        gradients = x - points
        if t <= warmup:
            g = gradients.mean(0)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        else:
            owed = b1 * m + (1 - b1) * gradients + own
            sent = np.stack([sign(y) for y in owed])
            own, mean = owed - sent, sent.mean(0) + error
            m = sign(mean)
            error = mean - m
        corrected = v / (1 - b2 ** min(t, warmup))
        x = x - rate * m / (1 - b1**t) / (np.sqrt(corrected) + 1e-8)
    algorithm = algorithms.onebit_adam(loss, server_rate=rate, warmup=warmup)
    state, report = run(algorithm, rounds=rounds)
    np.testing.assert_allclose(flat(state.server.params), x, rtol=1e-4, atol=1e-5)
    assert (
        byte_count(report.simulator_only.bytes_up).tolist()
        == [64] * 4 + [(16 + 32) // 8] * 11
    )


def test_fedcams_is_that_of_the_paper():
    state, _ = run(CATALOGUE["fedcams"], rounds=15)
    expected = rounds.run("fedcams", optima(CLIENTS), 15, KEY)
    np.testing.assert_allclose(
        flat(state.server.params), expected, rtol=1e-4, atol=1e-5
    )


def test_1_bit_adam_sends_whole_means_down_before_the_freeze():
    algorithm = algorithms.onebit_adam(loss, server_rate=0.1, warmup=3)
    traffic = costs.measure_traffic(algorithm, PARAMS, jnp.zeros((STEPS, D)))
    ways = {"download": "messages", "rounds": 10}
    short, whole = -(-(D + 32) // 8), 4 * D
    follow = costs.prices(algorithm, PARAMS, traffic, **ways).follow
    assert follow[1:4] == (short, whole - short, 3)


def test_1_bit_adam_leaves_alone_what_has_no_gradient():
    def first_only(params, optimum):
        return jnp.sum((params["b"] - optimum[:4]) ** 2) / 2

    algorithm = algorithms.onebit_adam(first_only, server_rate=0.01, warmup=3)
    state, _ = run(algorithm, rounds=8)
    np.testing.assert_array_equal(state.server.params["w"], 0)
    assert 0 < float(jnp.abs(state.server.params["b"]).max()) < 1


SOME_OF_EIGHT = {
    "poisson": engine.poisson(8, 4),
    "dropout": engine.with_dropout(engine.fixed_size(8, 4), 0.4),
}
KEPT = {
    "ef21": lambda state: (state.clients.memory[0], state.server.memory[0]),
    "scaffold": lambda state: (state.clients.local, state.server.memory),
}


@pytest.mark.parametrize("sampler", SOME_OF_EIGHT)
@pytest.mark.parametrize("name", KEPT)
def test_the_server_has_the_mean_of_all_clients_when_some_take_part(name, sampler):
    state, _ = simulate(CATALOGUE[name], sampler=SOME_OF_EIGHT[sampler], clients=8)
    clients, server = KEPT[name](state)
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), clients)
    assert float(optax.tree.norm(mean)) > 0.1
    chex.assert_trees_all_close(mean, server, atol=1e-5)


BAD = {"compressor": compressors.qsgd(4)}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("marina", {"compressor": compressors.top_k(2), "server_rate": 0.1,
                    "probability": 0.3}),
        ("marina", {**BAD, "server_rate": falling(0.1), "probability": 0.3}),
        ("ef21", {**BAD, "server": optax.sgd(0.1)}),
        ("cd_adam", {**BAD, "server_rate": 0.1}),
        ("fedcams", {**BAD, "client_rate": 0.1, "server_rate": 0.1}),
        ("fedcams", {"compressor": WHOLE, "client_rate": 0.1, "server_rate": 0.1,
                     "eps": 0.0}),
        ("cocktail_sgd", {"cocktail": compressors.qsgd(4), "client_rate": 0.1,
                          "server_rate": 0.1}),
    ],
)  # fmt: skip
def test_what_an_analysis_does_not_cover_is_refused(name, options):
    with pytest.raises(ValueError, match=name):
        getattr(algorithms, name)(loss, **options)


@pytest.mark.parametrize("compression", [5, 1000])
def test_a_cocktail_has_the_bits_that_it_may_have(compression):
    d = 100_000
    made = catalog.build_compressor("cocktail", d, compression=compression, levels=15)
    assert 0.98 < made.bits(d) * compression / (32 * d) <= 1


def test_a_vote_of_nobody_moves_nothing():
    algorithm = algorithms.sign_sgd(loss, server_rate=0.1)
    assert algorithm.downlink
    vote = algorithm.downlink.transform
    params = {"a": jnp.ones(3), "b": jnp.ones(2)}
    state = vote.init(params)
    none, _ = vote.update(jax.tree.map(jnp.zeros_like, params), state, params)
    some, _ = vote.update(
        {"a": jnp.array([0.0, 2, -2]), "b": jnp.zeros(2)}, state, params
    )
    assert not any(leaf.any() for leaf in jax.tree.leaves(none))
    assert some["a"].tolist() == [1, 1, -1] and some["b"].tolist() == [1, 1]
