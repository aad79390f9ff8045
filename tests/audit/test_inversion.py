"""Attacks find what is there to be found, and no more than their knowledge allows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, channels, sketch
from fl_sketch.audit import inversion
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Algorithm, Server
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local

pytestmark = pytest.mark.slow

SIDE = 6
KEYS, OTHER_KEYS = (round_keys(jax.random.key(seed), 0, 0) for seed in (1, 99))
SHAPES = {"a": (SIDE * SIDE, 24), "b": (24,), "c": (24, 4), "d": (4,)}
PARAMS = {
    name: jax.random.uniform(key, shape, minval=-0.5, maxval=0.5)
    for key, (name, shape) in zip(
        jax.random.split(jax.random.key(0), 4), SHAPES.items(), strict=True
    )
}
SERVER = Server(PARAMS, (), (), jnp.int32(0))
IMAGES = jax.random.uniform(jax.random.key(2), (3, 1, SIDE, SIDE, 1))
LABELS = jnp.array([[1], [3], [0]])
PLAIN, SKETCH = sketch.identity(), sketch.count_sketch(500)  # of 1012 numbers


def loss(params, batch):
    images, labels = batch
    hidden = jax.nn.sigmoid(images.reshape(len(images), -1) @ params["a"] + params["b"])
    logits = hidden @ params["c"] + params["d"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def clipped(threshold, z):
    return mechanism.central(
        clipping.clip(threshold), noise_multiplier=z, denominator=50
    )


def client(op, labels, keys, guard=None):
    """Returns (the algorithm of a client, images -> its message after one step)."""
    algorithm = algorithms.safl(loss, sketch=op, client_rate=1.0, server=optax.sgd(1.0))
    algorithm = algorithm._replace(mechanism=guard)

    def batches(images):
        return images[None], labels[None]

    return algorithm, inversion.client_view(algorithm, SERVER, keys, batches)


@functools.cache
def attacker(op, iterations, optimizer):
    """Returns `(messages, keys) -> Found` of three clients.

    Keys are arguments, so that all attackers have the same program.
    """

    def on_client(row, keys):
        message, labels, start = row
        _, view = client(op, labels, keys)
        return inversion.invert(
            view, message, start, steps=iterations, optimizer=optimizer, rate=0.1
        )

    def on_all(messages, keys):
        rows = messages, LABELS, jax.random.uniform(jax.random.key(3), IMAGES.shape)
        return jax.lax.map(lambda row: on_client(row, keys), rows)

    return jax.jit(on_all)


def attack(op, *, keys=KEYS, iterations=150, optimizer="lbfgs"):
    """Returns the PSNR of three images of three clients."""

    def message(image, labels):
        return client(op, labels, KEYS)[1](image)

    seen = jax.jit(jax.vmap(message))(IMAGES, LABELS)
    found = attacker(op, iterations, optimizer)(seen, keys)
    assert found.curve.shape == (3, iterations)
    pairs = zip(IMAGES, np.asarray(found.inputs), strict=True)
    return [float(inversion.psnr(true[0], guess[0])) for true, guess in pairs]


def test_who_knows_the_hashes_finds_images_and_who_does_not_finds_nothing():
    assert min(attack(SKETCH)) > 30
    assert max(attack(SKETCH, keys=OTHER_KEYS)) < 15


# A matrix of numbers is drawn in every step of the search: it is a small one.
@pytest.mark.parametrize(("name", "size"), [("gaussian", 64), ("srht", 256)])
def test_no_operator_hides_anything(name, size):
    assert np.median(attack(getattr(sketch, name)(size), iterations=100)) > 30


def test_adam_and_plain_descent_get_somewhere_too():
    assert np.median(attack(PLAIN, optimizer="adam", iterations=800)) > 18
    assert np.isfinite(attack(PLAIN, optimizer="gd", iterations=20)).all()


def exact(guard):
    return Algorithm(local.one_gradient(loss), channels.exact(), optax.sgd(1.0), guard)


@pytest.mark.parametrize("z", [0.0, 1.5])
def test_what_is_released_has_the_noise_of_the_whole_sum(z):
    message = {"x": jnp.full(20_000, 0.001)}
    seen = inversion.released(exact(clipped(2.0, z)), message, KEYS)["x"]
    assert float(jnp.std(seen)) == pytest.approx(2 * z, rel=0.02, abs=1e-8)
    assert z or np.allclose(seen, message["x"], rtol=1e-5)
    nothing = inversion.released(exact(clipped(2.0, z)), {"x": jnp.zeros(3)}, KEYS)
    assert jnp.isfinite(nothing["x"]).all()  # of a message of zeros


def test_mechanisms_that_cannot_be_attacked_so_are_refused():
    guard = mechanism.integers(
        clipping.clip(1.0), noise_multiplier=1.0, denominator=5, bits=16
    )
    with pytest.raises(ValueError, match="central noise"):
        inversion.released(exact(guard), jnp.ones(3), KEYS)
    with pytest.raises(ValueError, match="optimizer='adams'"):
        inversion.invert(lambda z: z, jnp.ones(3), jnp.ones(3), optimizer="adams")


def test_likeness_is_what_its_names_say():
    random = np.random.default_rng(0)
    true = random.uniform(size=(28, 28, 1))
    noisy = [true + s * random.normal(size=true.shape) for s in (0.0, 0.02, 0.2)]
    psnr = [float(inversion.psnr(true, image)) for image in noisy]
    ssim = [inversion.ssim(true, image) for image in noisy]
    assert psnr[0] == 100 and psnr[0] > psnr[1] > psnr[2]
    assert ssim[0] == pytest.approx(1.0) and ssim[0] > ssim[1] > ssim[2]
    assert inversion.ssim(true, 1 - true) < 0
    # Only places around which the window of 11 x 11 is inside count.
    framed = true.copy()
    framed[0], framed[:, 0] = 0, 0
    inner = np.s_[1:-1, 1:-1]
    assert inversion.ssim(true, framed) < 1
    assert inversion.ssim(true[inner], framed[inner]) == pytest.approx(1.0)
    plain = np.zeros((11, 11, 1))
    plain[5, 5] = 1.0
    # One place: by hand from the window's weights, of which the middle's is w.
    weights = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    w = float((weights / weights.sum())[5] ** 2)
    c1, c2 = 0.01**2, 0.03**2
    by_hand = (c1 / (w**2 + c1)) * (c2 / (w - w**2 + c2))
    assert inversion.ssim(plain, plain * 0) == pytest.approx(by_hand, rel=1e-6)
    assert float(inversion.psnr(true * 0, true * 0 + 0.1)) == pytest.approx(20.0)
    assert float(inversion.mse(true * 0, true * 0 - 5)) == 0  # cut to [0, 1]
