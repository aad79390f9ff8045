"""The most probable inputs: exact where they can be, and never worse than a guess."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, sketch
from fl_sketch.audit import inversion
from fl_sketch.core import trees
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Server
from fl_sketch.privacy import clipping, mechanism
from tests.audit import test_inversion as small

pytestmark = pytest.mark.slow

SIDE, OUTPUTS = 6, 4
SHAPE = (1, SIDE, SIDE, 1)
KEYS = round_keys(jax.random.key(1), 0, 0)
ROOM = 100.0  # a threshold that nothing reaches
PIXELS = jax.random.uniform(jax.random.key(2), (500, *SHAPE[1:])) ** 2
PRIOR = inversion.prior_of(np.asarray(PIXELS))


def linear(params, images):
    """Returns a loss whose gradient is linear in the images."""
    return (images.reshape(len(images), -1) @ params).mean(0) @ jnp.arange(1.0, 5.0)


def sketched(z):
    guard = mechanism.central(clipping.clip(ROOM), noise_multiplier=z, denominator=50)
    algorithm = algorithms.safl(
        linear, sketch=OP, client_rate=1.0, server=optax.sgd(1.0)
    )
    return algorithm._replace(mechanism=guard)


def defended(z):
    return algorithms.private_sketching(
        linear, sketch=OP, client_rate=1.0, threshold=ROOM, noise_multiplier=z
    )


OP = sketch.count_sketch(50)  # of 144 numbers
PARAMS = jnp.zeros((SIDE * SIDE, OUTPUTS))
SERVER = Server(PARAMS, (), (), jnp.int32(0))
NORMS = inversion.row_norms(functools.partial(OP.apply, KEYS.shared), PARAMS)
WAYS = {"sketched": (sketched, jnp.ones(50)), "defended": (defended, NORMS)}


@pytest.mark.parametrize("way", WAYS)
def test_of_a_linear_message_it_is_the_mean_of_the_posterior(way):
    """Wherever the search begins: at the mean image, or at one that is drawn."""
    make, norms = WAYS[way]

    def view_of(z):
        return inversion.client_view(make(z), SERVER, KEYS, lambda images: images[None])

    image, view = PIXELS[:1], view_of(0.0)
    starts = inversion.starts(jax.random.key(3), SHAPE, PRIOR)

    @jax.jit
    def found(seen, deviations):
        def one(start):
            return inversion.most_probable(view, seen, deviations, PRIOR, start).inputs

        return jax.lax.map(one, starts).reshape(2, -1)

    rows = jax.jacfwd(lambda x: trees.ravel(view(x)))(image)  # no entry is zero
    rows = np.asarray(rows, np.float64).reshape(50, -1)
    covariance = np.asarray(PRIOR.spread, np.float64)
    covariance = covariance @ covariance.T
    mean = np.asarray(PRIOR.mean, np.float64).ravel()
    for z in (1e-4, 1e-2, 1.0):
        seen = inversion.released(make(z), view_of(z)(image), KEYS)
        deviations = z * ROOM * norms
        noise = np.diag(np.asarray(deviations, np.float64) ** 2)
        gap = np.asarray(trees.ravel(seen), np.float64) - rows @ mean
        gain = covariance @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + noise)
        closed = mean + gain @ gap
        assert np.abs(found(seen, deviations) - closed).max() < 2e-3, z
        # What is found is no other than the mean image where noise is large alone.
        assert (np.abs(closed - mean).max() > 0.1) == (z < 1.0)


IMAGES = jax.random.uniform(jax.random.key(5), (8, *SHAPE))
LABELS = jnp.arange(8)[:, None] % 4
FLAT = inversion.Prior(
    jnp.full(SHAPE[1:], 0.5), jnp.eye(SIDE * SIDE) / jnp.sqrt(12.0)
)  # the mean and the covariance of those
LEVELS = (1e-4, 1e-2, 1.0, 10.0)
TOLERANCE = 0.1  # decibels


def test_with_more_noise_it_shrinks_to_the_guess_and_never_below():
    start = jnp.zeros((1, SIDE * SIDE))

    @jax.jit
    def found(z):
        """Returns the images of the attackers with a prior and without."""

        def attacked(row):
            image, labels, number = row
            keys = KEYS._replace(server=jax.random.fold_in(KEYS.server, number))
            guard = small.clipped(0.1, 1.0)
            algorithm, noisy = small.client(small.SKETCH, labels, KEYS, guard)
            released = inversion.released(algorithm, noisy(image), keys)
            still = small.clipped(0.1, 0.0)
            _, view = small.client(small.SKETCH, labels, KEYS, still)
            message = view(image)
            seen = message + z * (released - message)
            deviations = jnp.full(500, z * 0.1)
            likely = inversion.most_probable(view, seen, deviations, FLAT, start)
            nearest = inversion.invert(view, seen, FLAT.inputs(start), steps=150)
            return likely.inputs, nearest.inputs

        return jax.lax.map(attacked, (IMAGES, LABELS, jnp.arange(len(IMAGES))))

    def decibels(images):
        pairs = zip(IMAGES, np.asarray(images), strict=True)
        return np.mean([inversion.psnr(true[0], image[0]) for true, image in pairs])

    guess = decibels(jnp.broadcast_to(FLAT.mean, IMAGES.shape))
    with_prior, without = np.transpose([list(map(decibels, found(z))) for z in LEVELS])
    assert with_prior[0] > 30
    assert (np.diff(with_prior) < TOLERANCE).all(), with_prior
    assert with_prior.min() > guess - TOLERANCE
    assert abs(with_prior[-1] - guess) < TOLERANCE
    assert without[-1] < guess - 3  # the attacker who takes noise for a message
    assert (with_prior > without - TOLERANCE).all()


@pytest.mark.parametrize("name", ["count_sketch", "srht", "gaussian"])
def test_rows_have_the_norms_of_the_matrix(name):
    op = getattr(sketch, name)(20)
    apply = functools.partial(op.apply, KEYS.shared)
    like = {"a": jnp.zeros((7, 3)), "b": jnp.zeros(29)}
    units = jax.vmap(trees.unraveler(like))(jnp.eye(50))
    matrix = np.asarray(jax.lax.map(lambda unit: apply(unit).ravel(), units)).T
    norms = np.linalg.norm(matrix, axis=1)
    np.testing.assert_allclose(inversion.row_norms(apply, like), norms, rtol=1e-5)
    assert norms.std() > 0 or name == "srht"


def test_a_search_that_gains_nothing_rests_and_the_least_value_is_taken():
    def value(x):
        return jnp.sum((x - jnp.arange(3.0)) ** 2) + 5

    def searched(least_gain):
        """Descends by 0.4 % of what is left above 5, in every iteration."""
        return inversion.minimised(
            value,
            jnp.full(3, 9.0),
            optimizer="gd",
            steps=4000,
            rate=1e-3,
            least_gain=least_gain,
        )

    (_, tireless, falling), (_, early, resting) = searched(0.0), searched(1e-4)
    assert float(tireless) == pytest.approx(5, abs=1e-4)
    assert 5.1 < float(early) < 5.2  # 0.4 % of 0.13 is 1e-4 of 5.13
    assert falling[-500] > falling[-1] and (resting[2000:] == resting[-1]).all()
    several = inversion.Found(
        jnp.arange(3.0), jnp.array([0.0, 0.1, 0.2]), jnp.array([4.0, 3.0, 5.0]), None
    )
    assert float(inversion.best_of(several).inputs) == 1
