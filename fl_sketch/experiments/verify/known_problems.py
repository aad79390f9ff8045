"""Small problems whose constants are known exactly.

A measurement can only test a theorem if L, mu, sigma^2, G and the minimum are those of
the problem, and not estimates.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import validate
from fl_sketch.theory import Constants

TRIED = 201  # numbers between the optima of a coordinate


class Quadratics(NamedTuple):
    """Clients with the losses (x - o)' Q (x - o) / 2.

    Attributes:
      matrices: Q of each client, symmetric, shape=(clients, d, d).
      optima: o of each client, shape=(clients, d).
      optimum: w*, the minimum of the mean loss, shape=(d,).
      smoothness: L, the largest eigenvalue of all Q, and of their mean.
      convexity: mu, the smallest.
      spread: sigma^2, the mean over clients of `|grad f_c(w*)|^2`.
    """

    matrices: jax.Array
    optima: jax.Array
    optimum: jax.Array
    smoothness: float
    convexity: float
    spread: float

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss at `params` of `client`, a number that may be traced."""
        off = params - self.optima[client]
        return off @ self.matrices[client] @ off / 2

    def excess(self, params: jax.Array) -> jax.Array:
        """Returns `f - f*` at `params`, for the mean loss f over clients."""
        off = params - self.optimum
        return off @ self.matrices.mean(0) @ off / 2

    @property
    def constants(self) -> Constants:
        """The constants of the problem, from zero, where all walks start."""
        clients, d = self.optima.shape
        return Constants(
            smoothness=self.smoothness,
            convexity=self.convexity,
            distance=float(self.optimum @ self.optimum),
            start=float(self.excess(jnp.zeros_like(self.optimum))),
            spread=self.spread,
            d=d,
            clients=clients,
        )


def quadratics(
    *, d: int, clients: int, condition: float, seed: int, apart: float = 0.0
) -> Quadratics:
    """Returns quadratics with eigenvalues from 1 / condition to 1, on the same axes.

    In between the eigenvalues of clients differ, spread as powers from 1/2 to 2 of even
    ones. So L and mu are those of each client and of f, and clients whose minima differ
    drift apart in local steps.

    Args:
      condition: L / mu.
      apart: about how far optima are from their common part, itself about 1 long.
    """
    validate.at_least_one(d=d, clients=clients)
    random, even = np.random.default_rng(seed), np.linspace(0, 1, d)
    powers = 2.0 ** np.linspace(-1, 1, clients) if clients > 1 else np.ones(1)
    values = 1 / condition + (1 - 1 / condition) * even ** powers[:, None]
    axes = np.linalg.qr(random.normal(size=(d, d)))[0]
    matrices = np.einsum("ij,cj,kj->cik", axes, values, axes)
    shared = random.normal(size=d) / d**0.5
    optima = shared + apart * random.normal(size=(clients, d)) / d**0.5
    pulls = np.einsum("cij,cj->ci", matrices, optima)
    optimum = np.linalg.solve(matrices.sum(0), pulls.sum(0))
    gradients = np.einsum("cij,cj->ci", matrices, optimum - optima)
    return Quadratics(
        *(jnp.asarray(x, jnp.float32) for x in (matrices, optima, optimum)),
        smoothness=1.0,
        convexity=1 / condition,
        spread=float(np.mean(np.sum(gradients**2, axis=1))) if apart else 0.0,
    )


class Wells(NamedTuple):
    """Clients with the losses sum_i c_i log(1 + (x_i - o_i)^2) / 2: not convex.

    Gradients are at most sqrt(sum c_i^2) / 2 long, and Hessians diagonal with numbers
    from -c_i / 8 to c_i.

    Attributes:
      curvatures: c, the largest first, shape=(d,).
      optima: o of each client, shape=(clients, d).
    """

    curvatures: jax.Array
    optima: jax.Array

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss at `params` of `client`, a number that may be traced."""
        off = params - self.optima[client]
        return self.curvatures @ jnp.log1p(off**2) / 2

    def mean_loss(self, params: jax.Array) -> jax.Array:
        """Returns the mean loss over clients at `params`."""
        return jnp.mean(jnp.log1p((params - self.optima) ** 2) @ self.curvatures) / 2

    def gradient(self, params: jax.Array) -> jax.Array:
        """Returns the gradient of the mean loss at `params`."""
        return jax.grad(self.mean_loss)(params)

    @property
    def constants(self) -> Constants:
        """The constants of the problem, from zero, where all walks start."""
        smoothness, (clients, d) = float(self.curvatures.max()), self.optima.shape
        return Constants(
            smoothness=smoothness,
            start=self._excess(),
            gradient=float(jnp.sqrt(jnp.sum(self.curvatures**2))) / 2,
            intrinsic=float(self.curvatures.sum()) / smoothness,
            d=d,
            clients=clients,
        )

    def _excess(self) -> float:
        """Returns f - f* at zero, or more by less than a part in 10,000.

        Coordinates are apart, and the best number of each is between its optima. It is
        at most half a step from one that is tried, where a second derivative of at most
        c_i allows no more than c_i step^2 / 8 above the least.
        """
        optima = np.asarray(self.optima, np.float64)
        lowest, highest = optima.min(0), optima.max(0)
        step = (highest - lowest) / (TRIED - 1)
        tried = (lowest + number * step for number in range(TRIED))
        losses = (np.log1p((at - optima) ** 2).mean(0) / 2 for at in tried)
        least = np.maximum(functools.reduce(np.minimum, losses) - step**2 / 8, 0)
        begin = np.log1p(optima**2).mean(0) / 2
        return float(np.asarray(self.curvatures, np.float64) @ (begin - least))


def wells(
    *, d: int, clients: int, decay: float, seed: int, apart: float = 0.3
) -> Wells:
    """Returns wells with curvatures i^-decay; above 1, I is bounded for all d.

    Optima are `apart`, as a deviation, from their common part, which is about 1 in
    every coordinate.
    """
    validate.at_least_one(d=d, clients=clients)
    random = np.random.default_rng(seed)
    shared = 1 + 0.3 * random.normal(size=d)
    optima = shared + apart * random.normal(size=(clients, d))
    curvatures = np.arange(1, d + 1) ** -float(decay)
    return Wells(jnp.asarray(curvatures, jnp.float32), jnp.asarray(optima, jnp.float32))


class Ripples(NamedTuple):
    """An attacker's objective: the squared distance of a message to that of an input.

    A message is scale * (x + bend sin(x)), coordinate by coordinate, so that a slope is
    from scale (1 - bend) to scale (1 + bend). By the triangle inequality, sin(x) is off
    its tangent at y by at most `2 |x - y|`, which gives `dent`. The gradient is
    semi-Lipschitz without a roughness in pairs with the input only, and Theorem K.3
    needs no more.

    Attributes:
      scales: one for each coordinate, from `least` to 1.
      target: x*, the input.
      bend: how far a message is from a linear one, below 1.
    """

    scales: jax.Array
    target: jax.Array
    bend: float

    def message(self, x: jax.Array) -> jax.Array:
        """Returns the message of an input."""
        return self.scales * (x + self.bend * jnp.sin(x))

    def objective(self, x: jax.Array) -> jax.Array:
        """Returns L at an input."""
        return jnp.sum((self.message(x) - self.message(self.target)) ** 2)

    @property
    def constants(self) -> Constants:
        """The constants of Theorems K.2 and K.3, from zero."""
        least, most = float(self.scales.min()), float(self.scales.max())
        start = jnp.zeros_like(self.target)
        return Constants(
            smoothness=2 * (most * (1 + self.bend)) ** 2,
            convexity=2 * (least * (1 - self.bend)) ** 2,
            slope=2 * least * (1 - self.bend),
            dent=4 * most * self.bend,
            roughness=0.0,
            power=0.5,
            start=float(self.objective(start)),
            distance=float(self.target @ self.target),
            d=self.target.size,
        )


def ripples(*, d: int, least: float, bend: float, seed: int) -> Ripples:
    """Returns ripples with even scales from `least` to 1, and an input about 1 away."""
    validate.at_least_one(d=d)
    target = np.random.default_rng(seed).normal(size=d) / d**0.5
    scales = jnp.linspace(least, 1, d)
    return Ripples(scales, jnp.asarray(target, jnp.float32), bend)


Problem = Quadratics | Wells
