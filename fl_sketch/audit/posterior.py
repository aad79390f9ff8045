"""The most probable inputs of a noisy message, for an attacker with a prior.

`gradient_inversion.invert` fits the noise of a message too, and under noise finds worse
inputs than a guess. This attacker knows the size of the noise n_i on every number,
s_i = m_i(z) + n_i, and that inputs are Gaussian with the mean and the covariance of
public examples. It looks for the inputs of largest posterior density, the minimum of ::

  sum_i (m_i(z) - s_i)^2 / (2 deviation_i^2) + (z - mean)' covariance^-1 (z - mean) / 2

With much noise that is the mean, the best guess without a message. With little noise
the prior chooses among the inputs that explain the message. If the message is linear in
the inputs, it is the posterior's mean.

The numbers of the noise are taken as independent, which they are after a count sketch
of one row. If rows of R overlap, this leaves out their correlations.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.core import trees
from fl_sketch.core.protocols import Message, Tree

# Added to the variance of every pixel, so that no image is impossible: 0.01^2.
FLOOR = 1e-4
# The least deviation of a number, over the root mean square of all: float32's own.
ROUNDING = 1e-5
LEAST_GAIN = 1e-6  # of a search's iteration: float32 shows a tenth of it


class Prior(NamedTuple):
    """A Gaussian on inputs: mean + L c, where their code c is standard normal.

    Attributes:
      mean: the mean input, of any shape.
      spread: L, a root of the covariance, shape=(numbers, numbers) of an input.
    """

    mean: jax.Array
    spread: jax.Array

    def inputs(self, codes: jax.Array) -> jax.Array:
        """Returns the inputs of `codes`, along the same leading axes."""
        moved = codes @ self.spread.T
        return self.mean + moved.reshape(*codes.shape[:-1], *self.mean.shape)


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
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(row)))

    return jax.lax.map(norm, jnp.arange(flat.size))


def most_probable(
    view: inversion.View,
    seen: Message,
    deviations: jax.Array,
    prior: Prior,
    start: jax.Array,
    *,
    optimizer: str = "lbfgs",
    steps: int = 300,
    rate: float = 0.1,
) -> inversion.Found:
    """Returns the inputs of largest posterior density that a search finds.

    The objective is the negative logarithm of that density, up to a constant. It can be
    jitted, and mapped over images and starts.

    Args:
      view: inputs -> message, without noise.
      seen: the message, with noise.
      deviations: the standard deviation of the noise on every number of the message; 0
        for a number that never varies.
      prior: the Gaussian of each input, independently.
      start: the code of the first inputs; zeros are the mean.
      optimizer: one of `gradient_inversion.OPTIMIZERS`; with gd and adam the rate must
        fit the scale of the posterior.
      steps: the number of iterations.
      rate: the rate of gd and adam.
    """
    view, off = inversion.compared(view, seen)
    target = trees.ravel(seen)
    least = ROUNDING * jnp.sqrt(jnp.mean(target**2))
    weights = jnp.maximum(deviations, least) ** -2.0

    def value(codes):
        gap = view(prior.inputs(codes)) - target
        return (jnp.sum(weights * gap**2) + jnp.sum(codes**2)) / 2

    best, least_value, curve = inversion.minimised(
        value,
        start,
        optimizer=optimizer,
        steps=steps,
        rate=rate,
        least_gain=LEAST_GAIN,
    )
    inputs = prior.inputs(best)
    return inversion.Found(inputs, off(view(inputs)), least_value, curve)


def starts(key: jax.Array, shape: Sequence[int], count: int) -> jax.Array:
    """Returns codes to begin from: that of the mean, and `count` drawn from the prior.

    Args:
      key: the attacker's key.
      shape: the shape of all images of an attack, their axis first.
      count: the number of drawn codes.
    """
    codes = shape[0], math.prod(shape[1:])
    drawn = jax.random.normal(key, (count, *codes))
    return jnp.concatenate([jnp.zeros((1, *codes)), drawn])
