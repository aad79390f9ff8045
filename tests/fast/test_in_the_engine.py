"""Whatever differentiates or evaluates a loss uses its fast form, unless it is left."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, models
from fl_sketch.audit import gradient_inversion, spectrum
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Server
from fl_sketch.data.examples import Examples
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.engine.mesh import mesh_over
from fl_sketch.privacy.local_noise import noisy_steps
from fl_sketch.transforms import local
from tests.fast.watching import Watched, floats

LAYERS = ["convolve pooled", "convolve"]


class Net(nn.Module):
    classes: int = 4

    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(5, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.sigmoid(nn.Conv(4, (3, 3), 2)(x))
        return nn.Dense(self.classes)(x.reshape(len(x), -1))


IMAGES, LABELS = floats((24, 8, 8, 3)), np.arange(24, dtype=np.int32) % 4
PARAMS = Net().init(jax.random.key(0), IMAGES)["params"]
KEYS = round_keys(jax.random.key(0), 0, 0)


def loss(params, batch):
    logits = Net().apply({"params": params}, batch[0])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def assert_same(ours, plain):
    close = np.testing.assert_allclose
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-4, atol=1e-4), ours, plain)


def both(watched, run):
    """Requires the layers in what runs a loss, and none in the loss as written."""
    results = []
    for of, layers in ((loss, LAYERS), (engine.as_written(loss), [])):
        watched.names.clear()
        results.append(run(of))
        assert watched.names == layers
    assert_same(*results)
    return results[0]


@pytest.mark.slow
def test_a_simulation(watched):
    clients = data.clients((IMAGES, LABELS), owners=np.arange(24) % 6)

    def run(of):
        fedavg = algorithms.fedavg(of, client_rate=0.1)
        options = {"rounds": 2, "cohort": 4, "steps": 2, "batch": 3}
        start, key = PARAMS, jax.random.key(1)
        return engine.simulate(fedavg, start, clients, key=key, **options).params

    results = []
    for of in (loss, engine.as_written(loss)):
        watched.names.clear()
        results.append(run(of))
        assert set(watched.names) == (set(LAYERS) if of is loss else set())
    assert_same(*results)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), results[0], PARAMS)
    assert min(jax.tree.leaves(moved)) > 1e-3


BATCHES = IMAGES.reshape(2, 12, 8, 8, 3), LABELS.reshape(2, 12)


@pytest.mark.parametrize(
    "steps",
    [
        lambda of: local.sgd_steps(of, optax.sgd(0.1)),
        lambda of: local.full_gradient_steps(of, optax.sgd(0.1), steps=2),
        local.one_gradient,
        lambda of: local.tracked_steps(of, rate=0.1, gain=1.0),
        lambda of: noisy_steps(of, rate=0.1, clip=0.5, noise_multiplier=0.0),
    ],
    ids=["sgd", "full", "one", "tracked", "private"],
)
def test_local_work(steps, watched):
    """Each traces the loss once, the private steps with batches of one example."""

    def run(of):
        work, server = steps(of), Server(PARAMS, (), (), jnp.int32(0))

        @jax.jit
        def update(batches):
            return work.run(server, work.init(PARAMS), batches, KEYS).update

        return update(BATCHES)

    both(watched, run)


def test_an_evaluation(watched):
    made = models.classification(Net())
    mesh = mesh_over(jax.devices()[:1])
    parts = {"test": Examples(IMAGES, LABELS)}
    evaluate, given = make_evaluation(lambda numbers: made, parts, mesh)
    found = jax.jit(evaluate)((), PARAMS, given)
    assert watched.names == LAYERS
    np.testing.assert_allclose(found["test_loss"], loss(PARAMS, (IMAGES, LABELS)), 1e-5)


def test_a_product_with_a_hessian(watched):
    vector = jnp.ones(sum(leaf.size for leaf in jax.tree.leaves(PARAMS)))

    def run(of):
        return jax.jit(spectrum.hessian_product(of, PARAMS, BATCHES))(vector)

    both(watched, run)


def test_an_attack_by_gradients(watched):
    def run(of):
        algorithm = algorithms.fedavg(of, client_rate=0.1)
        server = Server(PARAMS, (), (), jnp.int32(0))
        view = gradient_inversion.client_view(
            algorithm, server, KEYS, lambda images: (images[None], LABELS[None, :2])
        )

        def off(images):
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(view(images)))

        return jax.jit(jax.grad(off))(IMAGES[:2])

    both(watched, run)
