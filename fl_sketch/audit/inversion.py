"""Gradient inversion: inputs recovered from what a client sent.

The attacker knows the model, the round's key and one client's message s, and looks for
inputs z whose own message m(z) equals it: the minimum of `|m(z) - s|^2`. For the
gradient of one step and a sketch R this is `|R grad F(w, z) - R g|^2` (Song et al.,
section 7.2). The attacker can compute every step, sketch, compressor and bound between
the images and the message, and differentiates through them. Noise is not in m: give
`client_view` the algorithm without it. This attacker also knows the dither of a client
(QSGD), which a real one does not. With a mechanism the attacker sees the bounded
message with the noise of the release, as if it knew every other message: the strongest
attacker that a client-level guarantee covers.

`invert` fits the noise of a message too, and under noise finds worse inputs than a
guess. `most_probable` knows the size of the noise n_i on every number, s_i = m_i(z) +
n_i, and that inputs are Gaussian with the mean and the covariance of public examples.
It looks for the inputs of largest posterior density, the minimum of ::

  sum_i (m_i(z) - s_i)^2 / (2 deviation_i^2) + (z - mean)' covariance^-1 (z - mean) / 2

If the message is linear in the inputs, it is the posterior's mean. The numbers of the
noise are taken as independent, which they are after a count sketch of one row. If rows
of R overlap, this leaves out their correlations.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import ndimage, optimize

from fl_sketch.channels import player
from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import Algorithm, Keys, Message, Round, Server, Tree

View = Callable[[jax.Array], Message]  # inputs -> the message of a client that has them
OPTIMIZERS = ("gd", "adam", "lbfgs")
PATIENCE = 3  # iterations without a gain, after which a search may end
# Added to the variance of every pixel, so that no image is impossible: 0.01^2.
FLOOR = 1e-4
# The least deviation of a number, over the root mean square of all: float32's own.
ROUNDING = 1e-5
LEAST_GAIN = 1e-6  # of a search's iteration: float32 shows a tenth of it
K1, K2, SIGMA = 0.01, 0.03, 1.5  # the constants of SSIM in its paper
REACH = 5  # pixels from the middle of its window of 11 x 11


class Found(NamedTuple):
    """The best inputs of an attack, and how good they are."""

    inputs: jax.Array
    mismatch: jax.Array  # of their message: `|m(z) - s|^2 / |s|^2`
    value: jax.Array  # of the objective: the mismatch, and the prior if any
    curve: jax.Array  # the objective in every iteration


class Prior(NamedTuple):
    """A Gaussian on inputs: mean + L c, where their code c is standard normal."""

    mean: jax.Array  # input, of any shape
    spread: jax.Array  # L, a root of the covariance

    def inputs(self, codes: jax.Array) -> jax.Array:
        """Returns the inputs of `codes`, along the same leading axes."""
        moved = codes @ self.spread.T
        return self.mean + moved.reshape(*codes.shape[:-1], *self.mean.shape)


def client_view(
    algorithm: Algorithm,
    server: Server,
    keys: Keys,
    batches: Callable[[jax.Array], Any],
) -> View:
    """Returns inputs -> the first message of a client, bounded by its mechanism.

    The `keys` are those of the round, or others if the attacker does not know the
    hashes; `batches` makes batches of inputs, labels included.
    """

    def view(inputs):
        memory = algorithm.uplink.init(server.params)
        state = algorithm.local.init(server.params)
        work = algorithm.local.run(server, state, batches(inputs), keys)
        arguments = (work.update, memory, keys, Round(server.round))
        message = player.message(player.play(algorithm.uplink, arguments).sent)
        if algorithm.mechanism is None:
            return message
        guard = algorithm.mechanism.init()
        return algorithm.mechanism.encode(guard, 0, message, keys).summand

    return view


def released(algorithm: Algorithm, message: Message, keys: Keys) -> Message:
    """Returns a message with the noise of the sum, as if all others were known."""
    if (mechanism := algorithm.mechanism) is None:
        return message
    guard = mechanism.init()
    if mechanism.integers or jax.tree.leaves(guard):
        msg = "Expected a mechanism with central noise and a fixed threshold to attack."
        raise ValueError(msg)
    mean = mechanism.release(guard, 0, message, keys).mean
    return jax.tree.map(lambda leaf: leaf * mechanism.denominator, mean)


def invert(
    view: View,
    seen: Message,
    start: jax.Array,
    *,
    optimizer: str = "lbfgs",
    steps: int = 300,
    rate: float = 0.1,
    smoothness: float = 0.0,
) -> Found:
    """Returns the inputs whose message is nearest to the one that was `seen`.

    It can be jitted, and mapped over images and starts. The optimizer "gd" is plain
    gradient descent as in the theorem; "lbfgs" searches along lines and has no rate.
    The `smoothness` is the weight of the total variation of images, a prior.
    """
    view, off = _compared(view, seen)

    def value(inputs):
        if smoothness == 0:
            return off(view(inputs))
        return off(view(inputs)) + smoothness * _total_variation(inputs)

    how = {"optimizer": optimizer, "steps": steps, "rate": rate}
    best, least, curve = minimised(value, start, **how)
    return Found(best, off(view(best)), least, curve)


def most_probable(
    view: View,
    seen: Message,
    deviations: jax.Array,
    prior: Prior,
    start: jax.Array,
    *,
    optimizer: str = "lbfgs",
    steps: int = 300,
    rate: float = 0.1,
) -> Found:
    """Returns the inputs of largest posterior density that a search finds.

    The objective is the negative logarithm of that density, up to a constant. The
    `deviations` are those of the noise on every number of the message; 0 for one that
    never varies. The `start` is the code of the first inputs; zeros are the mean.
    """
    view, off = _compared(view, seen)
    target = trees.ravel(seen)
    least = ROUNDING * jnp.sqrt(jnp.mean(target**2))
    weights = jnp.maximum(deviations, least) ** -2.0

    def value(codes):
        gap = view(prior.inputs(codes)) - target
        return (jnp.sum(weights * gap**2) + jnp.sum(codes**2)) / 2

    how = {"optimizer": optimizer, "steps": steps, "rate": rate}
    best, least, curve = minimised(value, start, least_gain=LEAST_GAIN, **how)
    inputs = prior.inputs(best)
    return Found(inputs, off(view(inputs)), least, curve)


def minimised(
    value: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    *,
    optimizer: str,
    steps: int,
    rate: float,
    least_gain: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the best point of a search, its value, and the value in every iteration.

    With a `least_gain` the search ends after `PATIENCE` iterations that reduce the
    least value by a smaller part, since line searches take longest at the bottom.
    """
    validate.one_of(OPTIMIZERS, optimizer=optimizer)
    validate.at_least_one(steps=steps)
    tx = {
        "lbfgs": lambda rate: optax.lbfgs(memory_size=20),
        "gd": optax.sgd,
        "adam": optax.adam,
    }[optimizer](rate)

    def step(carry, _) -> tuple[Any, Any]:
        point, state, best, least, calm = carry
        if optimizer == "lbfgs":
            now, grads = optax.value_and_grad_from_state(value)(point, state=state)
            more = {"value": now, "grad": grads, "value_fn": value}
        else:
            (now, grads), more = jax.value_and_grad(value)(point), {}
        updates, state = tx.update(grads, state, point, **more)
        gained = now < least - least_gain * jnp.abs(least)
        calm = jnp.where(gained | jnp.isinf(least), 0, calm + 1)
        better = now < least
        best = jnp.where(better, point, best)
        least = jnp.where(better, now, least)
        moved = optax.apply_updates(point, updates)
        # A line search that finds nothing leaves NaN: the attack ends there.
        point = trees.if_finite(moved, point)
        return (point, state, best, least, calm), now

    def step_or_rest(carry, _):
        *_, least, calm = carry
        if not least_gain:
            return step(carry, None)
        over = calm >= PATIENCE
        return jax.lax.cond(over, lambda c: (c, least), lambda c: step(c, None), carry)

    carry = start, tx.init(start), start, jnp.float32(jnp.inf), jnp.int32(0)
    (last, _, best, least, _), curve = jax.lax.scan(step_or_rest, carry, length=steps)
    end = value(last)
    best = jnp.where(end < least, last, best)
    return best, jnp.fmin(end, least), curve


def best_of(found: Found) -> Found:
    """Returns the result of least value among several along a leading axis."""
    return jax.tree.map(lambda leaf: leaf[jnp.argmin(found.value)], found)


def starts(key: jax.Array, shape: Sequence[int], prior: Prior | None) -> jax.Array:
    """Returns where searches for images of a shape begin, along a leading axis.

    That is uniform noise in [0, 1], or with a prior the code of its mean, and one drawn
    from it.
    """
    if prior is None:
        return jax.random.uniform(key, (1, *shape))
    codes = shape[0], math.prod(shape[1:])
    drawn = jax.random.normal(key, (1, *codes))
    return jnp.concatenate([jnp.zeros((1, *codes)), drawn])


def prior_of(examples: np.ndarray) -> Prior:
    """Returns the Gaussian with the mean and the covariance of `examples`.

    They are in [0, 1], along a leading axis. `FLOOR` is added to every variance.
    """
    flat = np.asarray(examples, np.float32).reshape(len(examples), -1)
    mean = flat.mean(0, dtype=np.float64)
    centred = flat - mean.astype(np.float32)
    values, vectors = np.linalg.eigh(centred.T @ centred / np.float32(len(flat)))
    spread = vectors * np.sqrt(np.maximum(values, 0) + FLOOR)
    mean = mean.reshape(examples.shape[1:])
    return Prior(jnp.float32(mean), jnp.float32(spread))


def row_norms(linear: Callable[[Tree], Message], like: Tree) -> jax.Array:
    """Returns the norm of each row of a linear map of updates shaped as `like`.

    It is the standard deviation of every number of the message of standard normal
    noise.
    """
    flat, adjoint = jax.vjp(lambda update: trees.ravel(linear(update)), like)

    def norm(number):
        (row,) = adjoint(jnp.zeros_like(flat).at[number].set(1))
        return optax.tree.norm(row)

    return jax.lax.map(norm, jnp.arange(flat.size))


def mse(true: np.ndarray, found: np.ndarray) -> np.floating:
    """Returns the mean squared error of an image, whose pixels are cut to [0, 1]."""
    return np.mean((np.asarray(true) - np.clip(found, 0, 1)) ** 2)


def psnr(true: np.ndarray, found: np.ndarray) -> np.floating:
    """Returns the peak signal-to-noise ratio in decibels by `mse`, at most 100."""
    return -10 * np.log10(np.maximum(mse(true, found), 1e-10))


def ssim(true: np.ndarray, found: np.ndarray) -> float:
    """Returns the structural similarity of two HWC images: its mean over all places.

    Only windows inside the image count, if there are any. The pixels of `found` are cut
    to [0, 1].

    Reference: Wang et al. (2004), section III.B.
    """
    a, b = np.asarray(true, np.float64), np.clip(found, 0, 1).astype(np.float64)

    def blurred(image):
        return ndimage.gaussian_filter(
            image, (SIGMA, SIGMA, 0), radius=(REACH, REACH, 0)
        )

    mean_a, mean_b = blurred(a), blurred(b)
    variance_a = blurred(a * a) - mean_a**2
    variance_b = blurred(b * b) - mean_b**2
    covariance = blurred(a * b) - mean_a * mean_b
    c1, c2 = K1**2, K2**2
    above = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    below = (mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)
    places = above / below
    if min(places.shape[:2]) > 2 * REACH:
        places = places[REACH:-REACH, REACH:-REACH]
    return float(np.mean(places))


def assignment(true: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Returns for each `true` image the number of its image among the `found`.

    The gradient of a batch does not depend on the order of its examples. This is the
    order of least mean squared error.
    """
    cost = [[mse(a, b) for b in found] for a in true]
    return optimize.linear_sum_assignment(np.array(cost))[1]


def _compared(view: View, seen: Message) -> tuple[View, Callable[[jax.Array], Any]]:
    """Returns (inputs -> their message as one vector, message -> its mismatch).

    The `view` is traced once, although line searches call it in many places.
    """
    traced_once = jax.jit(lambda inputs: trees.ravel(view(inputs)), inline=True)
    target = trees.ravel(seen)
    scale = jnp.maximum(jnp.sum(target**2), jnp.finfo(jnp.float32).tiny)
    return traced_once, lambda message: jnp.sum((message - target) ** 2) / scale


def _total_variation(images: jax.Array) -> jax.Array:
    """Returns the mean absolute difference of neighbouring pixels of `images`, NHWC.

    The absolute value is smooth at zero, since line searches need second derivatives.
    """
    down, right = jnp.diff(images, axis=1), jnp.diff(images, axis=2)
    return sum(jnp.mean(jnp.sqrt(d**2 + 1e-6)) for d in (down, right))  # pyright: ignore[reportReturnType]
