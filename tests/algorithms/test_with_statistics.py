"""Models that keep statistics of batches: trained, averaged, priced, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, models, sketch
from fl_sketch.core.trees import Stateful
from fl_sketch.run import begin, build
from tests.channels.rounds import quickly
from tests.models import own
from tests.run.configs import config_with

KEY = jax.random.key(0)
MODEL = own.normed(3)
LOSS = models.classification(MODEL)
X = np.asarray(3 + 2 * jax.random.normal(KEY, (24, 5)), np.float32)
Y = np.arange(24, dtype=np.int32) % 3
RATE, STEPS, D, KEPT = 0.3, 2, 6 * 5 + 6 + 12 + 6 * 3 + 3, 12


def value(params, batch):
    return LOSS.value(params, *batch)


def start():
    return LOSS.init(KEY, X[:1])


def by_hand(model, x, y):
    """Returns a client's model after its steps, as flax is used without a server."""
    params, state = model

    def loss(params):
        logits, moved = MODEL.apply(
            {"params": params, **state}, x, train=True, mutable=["batch_stats"]
        )
        each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return each.mean(), dict(moved)

    for _ in range(STEPS):
        grads, state = jax.grad(loss, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, grads)
    return Stateful(params, state)


def played(algorithm, owners, **options):
    """Returns a run of one round in which all clients use all that they have."""
    algorithm = algorithms.with_statistics(algorithm, jax.eval_shape(start))
    return engine.simulate(
        algorithm,
        start(),
        data.clients((X, Y), owners=owners),
        key=options.pop("key", KEY),
        rounds=1,
        steps=STEPS,
        batch=8,
        batches="whole",
        devices=jax.devices()[:1],
        bar=False,
        **options,
    )


def test_fedavg_means_what_each_client_would_have_alone():
    owners = np.arange(24) // 8
    run = played(algorithms.fedavg(value, client_rate=RATE), owners)
    parts = np.split(np.arange(24), 3)
    alone = [quickly(by_hand)(start(), X[part], Y[part]) for part in parts]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / 3, *alone)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
        run.params,
        mean,
    )
    assert run.history[-1]["bytes_up"] == 3 * 4 * (D + KEPT)


def test_a_sketch_is_of_the_parameters_and_statistics_come_as_they_are():
    owners, short = np.arange(24) // 8, 20
    run = played(
        algorithms.safl(
            value,
            sketch=sketch.count_sketch(short),
            client_rate=RATE,
            server=optax.adam(0.1),
        ),
        owners,
    )
    plain = played(algorithms.fedavg(value, client_rate=RATE), owners)
    jax.tree.map(np.testing.assert_array_equal, run.params.state, plain.params.state)
    assert run.history[-1]["bytes_up"] == 3 * 4 * (short + KEPT)
    assert jax.tree.map(jnp.shape, run.params) == jax.tree.map(jnp.shape, start())


OTHERS = {
    "scaffold": {},
    "fedgate": {},
    "ef21": {},
    "fetchsgd": {"sketch__rows": 5},
    "cd_adam": {},
    "fedsketchgate": {"sketch__query": "heaprix"},
}


def config(**changes):
    name = f"{own.__file__}:normed"
    changes = {"rounds": 3, "eval_every": 3, "compute__devices": 1, **changes}
    return config_with(model__name=name, **changes)


@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_algorithm_carries_statistics(name):
    asked = {"algorithm": name, "server__rate": 0.01, **OTHERS[name]}
    built = build(config(**asked))
    state = begin(built, 3).state
    kept = jax.device_get(state.server.params.state)  # the call uses the state up
    compiled = built.compile()
    state, reports = compiled.advance(state, 3)
    assert np.isfinite(jax.device_get(reports).simulator_only.diagnostics["loss"]).all()
    moved = jax.device_get(state.server.params.state)["batch_stats"]["norm"]
    assert np.abs(moved["mean"] - kept["batch_stats"]["norm"]["mean"]).max() > 1e-3
    assert np.all(moved["var"] > 0)
    assert built.facts["metrics"] == ["accuracy"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "onebit_adam"}, "parameters alone with algorithm=onebit_adam"),
        (
            {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0},
            "statistics of batches, which no bound covers: a resnet has norm=group",
        ),
        (
            {
                "algorithm": "private_sketching",
                "privacy__unit": "example",
                "privacy__noise_multiplier": 1.0,
                "client__batches": "subsets",
            },
            "statistics of batches, which no bound covers",
        ),
    ],
)
def test_where_nothing_covers_them_it_is_said(changes, words):
    with pytest.raises(ValueError, match=words):
        build(config(cohort__sampling="poisson", data__classes=10, **changes))


def test_statistics_are_the_mean_of_those_who_came_whatever_was_expected():
    owners = np.arange(24) // 8
    fedavg = algorithms.fedavg(value, client_rate=RATE)
    everyone = played(fedavg, owners).params.state
    for seed in range(60):
        some = played(
            fedavg, owners, cohort=engine.poisson(3, 1), key=jax.random.key(seed)
        )
        if some.history[-1]["bytes_up"] == 3 * 4 * (D + KEPT):  # all three
            break
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        some.params.state,
        everyone,
    )
