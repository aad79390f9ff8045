"""The theory of attacks of Song et al., section 7, on one instance.

Let `L(z) = |m(z) - s|^2` for the message m(z) of inputs z, minimised by plain gradient
descent. Theorem 7.5 needs two properties of L, for all z in question::

  semi-smooth      L(y) <= L(x) + <grad L(x), y - x> + b |y-x|^2 + a |y-x| sqrt(L(x))
  non-critical     theta_1^2 L <= |grad L|^2 <= theta_2^2 L

and promises, for steps `eta <= (theta_1^2 - a theta_2) / (2 b theta_2^2)`, if
`theta_1^2 > a theta_2`::

  L(z_t+1) - L* <= (1 - gamma) (L(z_t) - L*),
  gamma = eta (theta_1^2 - a theta_2) / 2

The paper has `|y-x|^(2-2p) L(x)^p` and theta_2^(2-2p), for any p below 1. The proof of
its Theorem L.1 then takes a eta for a eta^(2-2p), which is the same for p = 1/2 only.

`printed` has the constants of Theorems 7.4 and 7.8 as printed: a = 2 tau beta + 2
theta_2 gamma_2 and p = 1/2. They cannot meet that condition. beta bounds the largest
singular value of the pseudo-Hessian and tau that of R, so a theta_2 is at least the
theta_2^2 of the sketched problem, and so its theta_1^2. With these constants the
theorem says nothing about any instance.

`near` has constants that meet it near the solution. There the nonlinearity enters by
the Lipschitz constant of m's Jacobian times the length of a step, instead of the
Jacobian itself.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fl_sketch.core import trees, validate
from fl_sketch.core.platforms import has_gpu
from fl_sketch.core.protocols import Key, Like, Sketch


class Singular(NamedTuple):
    """The `smallest` and the `largest` singular value of a map, over some points."""

    smallest: float
    largest: float


class Rate(NamedTuple):
    """The bound of Theorem 7.5 with these constants.

    Attributes:
      a: the constant a of semi-smoothness.
      b: the constant b of semi-smoothness.
      theta: theta_1 and theta_2 of non-criticality.
      step: the largest admissible eta; 0 if there is none.
      gamma: the fraction of L - L* that a step removes; 0 if there is no bound.
    """

    a: float
    b: float
    theta: Singular
    step: float
    gamma: float


def jacobians(view: Callable, points: jax.Array) -> jax.Array:
    """Returns the Jacobians of `view`, inputs -> message, at `points`.

    For an unsketched gradient it is the pseudo-Hessian of Definition 7.1.

    Returns:
      An array of shape (points, length of the message, pixels).
    """
    shape = points.shape[1:]

    def flat_view(vector):
        return trees.ravel(view(vector.reshape(shape)))

    # A GPU's kernels of sketches have no forward mode.
    jacobian = jax.jacrev if has_gpu() else jax.jacfwd
    return jax.lax.map(jacobian(flat_view), points.reshape(len(points), -1))


def singular_values(maps: jax.Array) -> Singular:
    """Returns the range of the singular values of all `maps`, made by `jacobians`."""
    values = jax.lax.map(lambda m: jnp.linalg.svd(m, compute_uv=False), maps)
    return Singular(float(values.min()), float(values.max()))


def bend(maps: jax.Array, points: jax.Array) -> float:
    """Returns the largest `|J(x) - J(y)| / |x - y|` over neighbours among the points.

    It estimates the Lipschitz constant of the Jacobian from below. `maps` are the
    Jacobians at two or more `points`.
    """
    validate.at_least_one(pairs=len(points) - 1)
    gaps = jax.lax.map(lambda m: jnp.linalg.norm(m, 2), maps[1:] - maps[:-1])
    apart = jnp.linalg.norm((points[1:] - points[:-1]).reshape(len(gaps), -1), axis=1)
    return float(jnp.max(gaps / apart))


def of_sketch(op: Sketch, key: Key, like: Like) -> Singular:
    """Returns gamma_1 and gamma_2: the range of the singular values of R^T.

    Args:
      op: the operator R, whose adjoint is taken of every unit vector of messages.
      key: the key of its hashes.
      like: what it is applied to: a length, or a tree of the same shapes.
    """
    flat, rebuild = ravel_pytree(op.zeros(like))

    def row(unit):
        return trees.ravel(op.transpose(key, rebuild(unit), like))

    return singular_values(jax.lax.map(row, jnp.eye(flat.size))[None])


def promised(*, a: float, b: float, theta: Singular) -> Rate:
    """Returns the bound of Theorem 7.5; a step and gamma of 0 mean no bound."""
    left = theta.smallest**2 - a * theta.largest
    if left <= 0:
        return Rate(a, b, theta, 0.0, 0.0)
    step = left / (2 * b * theta.largest**2)
    return Rate(a, b, theta, step, step * left / 2)


def printed(
    hessian: Singular, sketch: Singular, *, lipschitz: float | None = None
) -> Rate:
    """Returns the bound with the constants of Theorem 7.8 as printed.

    Args:
      hessian: theta_1 and theta_2 of the pseudo-Hessian.
      sketch: gamma_1 and gamma_2 of R^T.
      lipschitz: beta of the gradient by the inputs; by default its least value,
        theta_2.
    """
    beta, tau = lipschitz or hessian.largest, sketch.largest
    theta = Singular(
        2 * hessian.smallest * sketch.smallest, 2 * hessian.largest * sketch.largest
    )
    a = 2 * tau * beta + 2 * hessian.largest * sketch.largest
    return promised(a=a, b=tau**2 * beta, theta=theta)


def near(message: Singular, bend: float, *, start: float) -> Rate:
    """Returns the bound near the solution.

    Let J be the Jacobian of m, sigma its singular values and H the Lipschitz constant
    of J. Then m(y) - m(x) is J (y - x) and at most `H |y-x|^2 / 2` more, so
    `b = sigma_2^2` and the second term is `H |y-x|^2 sqrt(L)`. No step is longer than
    `D = eta theta_2 sqrt(L_0)`, so that a = H D. And `|grad L| = 2 |J' (m - s)|`, where
    m - s is nearly in the range of J: theta = 2 sigma. As a depends on eta, eta is
    halved until that fits.

    Args:
      message: sigma_1 and sigma_2 where the descent goes.
      bend: H there.
      start: L_0, where the descent begins.
    """
    theta = Singular(2 * message.smallest, 2 * message.largest)
    eta = 1 / (2 * message.largest**2)
    for _ in range(60):
        a = bend * eta * theta.largest * math.sqrt(start)
        rate = promised(a=a, b=message.largest**2, theta=theta)
        if rate.step >= eta:
            left = theta.smallest**2 - a * theta.largest
            return rate._replace(step=eta, gamma=eta * left / 2)
        eta /= 2
    return Rate(math.inf, message.largest**2, theta, 0.0, 0.0)
