"""Attacks find what is there to be found, and no more than their knowledge allows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, channels, engine, models, sketch
from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.audit import likeness
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Algorithm, Server
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local
from tests.meshes import mesh_of

pytestmark = pytest.mark.slow

SIDE = 6
KEYS = round_keys(jax.random.key(1), 0, 0)


def weights(key):
    shapes = {"a": (SIDE * SIDE, 24), "b": (24,), "c": (24, 4), "d": (4,)}
    keys = jax.random.split(key, 4)
    return {
        name: jax.random.uniform(k, shape, minval=-0.5, maxval=0.5)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


PARAMS = weights(jax.random.key(0))
SERVER = Server(PARAMS, (), (), jnp.int32(0))
IMAGES = jax.random.uniform(jax.random.key(2), (3, 1, SIDE, SIDE, 1))
LABELS = jnp.array([[1], [3], [0]])


def loss(params, batch):
    images, labels = batch
    hidden = jax.nn.sigmoid(images.reshape(len(images), -1) @ params["a"] + params["b"])
    logits = hidden @ params["c"] + params["d"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def clients(op, steps=1, guard=None):
    algorithm = algorithms.safl(loss, sketch=op, client_rate=1.0, server=optax.sgd(1.0))

    def batches(labels):
        def of(images):
            return jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (steps, *leaf.shape)),
                (images, labels),
            )

        return of

    return algorithm._replace(mechanism=guard), batches


def clipped(threshold, z):
    return mechanism.central(
        clipping.clip(threshold), noise_multiplier=z, denominator=50
    )


def client(op, steps, z, labels, keys):
    guard = None if z is None else clipped(0.1, z)
    algorithm, batches = clients(op, steps, guard)
    return algorithm, inversion.client_view(algorithm, SERVER, keys, batches(labels))


@functools.cache
def attacker(op, steps, z, iterations, optimizer):
    """Returns `(messages, labels, starts, keys) -> Found` of three clients.

    Keys are arguments: whoever knows others has the same program, and no sketch is
    made while the program is compiled.
    """

    def one(message, labels, start, keys):
        _, view = client(op, steps, z, labels, keys)
        return inversion.invert(
            view, message, start, steps=iterations, optimizer=optimizer, rate=0.1
        )

    return jax.jit(engine.on_all(one, mesh_of(2, "clients")))


@functools.cache
def seen(op, steps, z):
    def of(image, labels, keys):
        algorithm, view = client(op, steps, z, labels, keys)
        return inversion.released(algorithm, view(image), keys)

    return jax.jit(jax.vmap(of, in_axes=(0, 0, None)))(IMAGES, LABELS, KEYS)


def attack(
    op, *, known=True, steps=1, noise=(None,), iterations=150, optimizer="lbfgs"
):
    """Returns the PSNR of three images of three clients, for one level after another.

    What is seen depends on the level of noise, the attacker's program does not.
    """
    keys = KEYS if known else round_keys(jax.random.key(99), 0, 0)
    keys = jax.tree.map(lambda key: jnp.stack([key] * len(IMAGES)), keys)
    starts = inversion.starts(jax.random.key(3), IMAGES.shape[1:], len(IMAGES))
    mapped = attacker(op, steps, noise[0], iterations, optimizer)
    psnr = []
    for z in noise:
        found = mapped(seen(op, steps, z), LABELS, starts, keys)
        assert found.curve.shape == (3, iterations)
        for true, guess in zip(IMAGES, np.asarray(found.inputs), strict=True):
            psnr.append(float(likeness.psnr(true[0], guess[0])))
    return psnr


def test_a_dense_layer_gives_its_input_away_exactly():
    image = IMAGES[0]
    grads = jax.grad(loss)(PARAMS, (image, LABELS[0]))
    found = inversion.input_of_dense(grads["a"], grads["b"])
    error = jnp.linalg.norm(found - image.ravel()) / jnp.linalg.norm(image)
    assert float(error) < 1e-4


@pytest.mark.parametrize("number", range(3))
def test_the_last_bias_gives_the_label_away(number):
    grads = jax.grad(loss)(PARAMS, (IMAGES[number], LABELS[number]))
    assert int(inversion.label_of_bias(grads["d"])) == int(LABELS[number, 0])


PLAIN, SKETCH = sketch.identity(), sketch.count_sketch(500)  # of 1012 numbers


def test_the_plain_gradient_and_its_sketch_give_images_away():
    assert min(attack(PLAIN)) > 40
    assert min(attack(SKETCH)) > 30


# A matrix of numbers is drawn in every step of the search: it is a small one.
@pytest.mark.parametrize(
    ("name", "size"), [("gaussian", 64), ("srht", 256), ("ams", 256)]
)
def test_no_operator_hides_anything(name, size):
    assert np.median(attack(getattr(sketch, name)(size))) > 30


def test_fewer_numbers_than_pixels_are_not_enough():
    assert max(attack(sketch.count_sketch(16))) < 20


def test_who_does_not_know_the_hashes_finds_nothing():
    assert max(attack(SKETCH, known=False)) < 15


def test_more_local_steps_are_simulated():
    assert np.median(attack(PLAIN, steps=3, iterations=250)) > 30


def test_adam_and_plain_descent_get_somewhere_too():
    assert np.median(attack(PLAIN, optimizer="adam", iterations=800)) > 18
    plain = attack(PLAIN, optimizer="gd", iterations=20)
    assert all(np.isfinite(plain))


def test_noise_hides_what_sketches_do_not():
    found = np.median(
        np.reshape(attack(SKETCH, noise=(0.0, 0.01, 10.0)), (3, 3)), axis=1
    )
    assert found[0] > 30 > found[2]
    assert found[0] > found[1] > found[2]
    assert found[2] < 12


def test_what_is_released_has_the_noise_of_the_whole_sum():
    algorithm = Algorithm(
        local.one_gradient(loss), channels.exact(), optax.sgd(1.0), clipped(2.0, 1.5)
    )
    message = {"x": jnp.full(20_000, 0.001)}
    seen = inversion.released(algorithm, message, KEYS)["x"]
    assert float(jnp.std(seen)) == pytest.approx(3.0, rel=0.02)
    quiet = algorithm._replace(mechanism=clipped(2.0, 0.0))
    seen = inversion.released(quiet, message, KEYS)["x"]
    np.testing.assert_allclose(seen, message["x"], rtol=1e-5)


def test_mechanisms_that_cannot_be_attacked_so_are_refused():
    guard = mechanism.distributed(
        clipping.clip(1.0), noise_multiplier=1.0, denominator=5, smallest=5
    )
    algorithm = Algorithm(
        local.one_gradient(loss), channels.exact(), optax.sgd(1.0), guard
    )
    with pytest.raises(ValueError, match="central noise"):
        inversion.released(algorithm, (jnp.ones(3), jnp.ones(())), KEYS)
    with pytest.raises(ValueError, match="Did you mean 'adam'"):
        inversion.invert(lambda z: z, jnp.ones(3), jnp.ones(3), optimizer="adams")


def test_likeness_is_what_its_names_say():
    random = np.random.default_rng(0)
    true = random.uniform(size=(28, 28, 1))
    noisy = [true + s * random.normal(size=true.shape) for s in (0.0, 0.02, 0.2)]
    psnr = [float(likeness.psnr(true, image)) for image in noisy]
    ssim = [likeness.ssim(true, image) for image in noisy]
    assert psnr[0] == 100 and psnr[0] > psnr[1] > psnr[2]
    assert ssim[0] == pytest.approx(1.0) and ssim[0] > ssim[1] > ssim[2]
    assert likeness.ssim(true, 1 - true) < 0
    # Only places around which the window of 11 x 11 is inside count.
    framed = true.copy()
    framed[0], framed[:, 0] = 0, 0
    inner = np.s_[1:-1, 1:-1]
    assert likeness.ssim(true, framed) < 1
    assert likeness.ssim(true[inner], framed[inner]) == pytest.approx(1.0)
    plain = np.zeros((11, 11, 1))
    plain[5, 5] = 1.0
    # One place: by hand from the window's weights, of which the middle's is w.
    offsets = np.arange(-5, 6)
    weights = np.exp(-(offsets**2) / (2 * 1.5**2))
    w = float((weights / weights.sum())[5] ** 2)
    c1, c2 = 0.01**2, 0.03**2
    by_hand = (c1 / (w**2 + c1)) * (c2 / (w - w**2 + c2))
    assert likeness.ssim(plain, plain * 0) == pytest.approx(by_hand, rel=1e-6)
    assert float(likeness.psnr(true * 0, true * 0 + 0.1)) == pytest.approx(20.0)
    assert float(likeness.mse(true * 0, true * 0 - 5)) == 0  # cut to [0, 1]


def test_the_smooth_net_is_as_large_as_it_is_said_to_be():
    loss = models.classification(models.build("sigmoid_lenet", 10))
    shape = jax.ShapeDtypeStruct((1, 28, 28, 1), jnp.float32)
    params = loss.init(jax.random.key(0), shape)
    leaves = jax.tree.leaves(params)
    assert sum(leaf.size for leaf in leaves) == 13_426
    assert all(0.3 < float(jnp.abs(leaf).max()) <= 0.5 for leaf in leaves)
