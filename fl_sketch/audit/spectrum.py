"""The eigenvalues of a Hessian, without the Hessian.

A few steps of Lanczos from a random vector turn products with the Hessian into a small
tridiagonal matrix. Its eigenvalues, weighted with the squared first components of its
eigenvectors, have the moments of the whole spectrum as that vector sees it. The mean
over vectors is the spectrum's density (stochastic Lanczos quadrature).

>>> import jax, jax.numpy as jnp
>>> values = jnp.array([-1.0, 0.0, 0.0, 0.0, 4.0])
>>> loss = lambda params, batch: values @ params**2 / 2
>>> found = of_loss(
...     loss, jnp.ones(5), jnp.zeros((1, 1)), jax.random.key(0), probes=8, steps=3)
>>> found.values[0].round().astype(int).tolist()
[-1, 0, 4]
>>> round(float(largest(found)), 3), round(float(intrinsic_dimension(found)), 3)
(4.0, 1.25)
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matfree import decomp

from fl_sketch import engine, trees, validate
from fl_sketch.keys import require_key
from fl_sketch.protocols import Key, Tree

ORTHOGONAL = 1e-2  # cosines of Lanczos' vectors, in float32 some 1e-6


class Spectrum(NamedTuple):
    """What each probe saw of the eigenvalues of a d-by-d matrix.

    Attributes:
      values: the eigenvalues, shape=(probes, steps), ascending.
      weights: the share of the spectrum near each, of the same shape; their sum is 1
        for each probe.
      d: the number of eigenvalues.
    """

    values: jax.Array
    weights: jax.Array
    d: int


def of_loss(
    loss: Callable[[Tree, Tree], jax.Array],
    params: Tree,
    batches: Tree,
    key: Key,
    *,
    probes: int = 4,
    steps: int = 60,
    mesh: jax.sharding.Mesh | None = None,
) -> Spectrum:
    """Returns the spectrum of the Hessian of the mean loss over batches.

    Costs probes * steps products, each about two gradients, and memory for `steps`
    vectors of length d.

    Args:
      loss: `(params, batch) -> scalar`.
      params: the place where the Hessian is taken.
      batches: batches of one size, along a leading axis.
      key: the key of the probes.
      probes: the number of random vectors.
      steps: the number of steps of Lanczos, at most d.
      mesh: the devices that share the probes out; None: one has all.

    Raises:
      ValueError: for more steps than d, or none.
    """
    require_key(key)
    d = trees.size(params)
    validate.at_least_one(probes=probes, steps=steps)
    validate.at_most(d, "the numbers of the parameters", steps=steps)
    product = hessian_product(loss, params, batches)
    tridiagonal = decomp.tridiag_sym(steps, reortho="full", materialize=True)

    def of_probe(key):
        probe = jax.random.rademacher(key, (d,), jnp.float32)
        found = tridiagonal(product, probe)
        small = _up_to_breakdown(found.Q_tall, found.J_small)  # pyright: ignore[reportArgumentType]
        values, vectors = jnp.linalg.eigh(small)
        return values, vectors[0] ** 2

    over = functools.partial(jax.lax.map, of_probe)
    if mesh is not None:
        over = engine.on_all(of_probe, mesh)
    values, weights = over(jax.random.split(key, probes))
    return Spectrum(values, weights, d)


def _up_to_breakdown(basis: jax.Array, tridiagonal: jax.Array) -> jax.Array:
    """Returns the matrix with zeros for all that came after a breakdown.

    When the products so far span all that the probe can reach, what is left of the
    next one is rounding, and no longer orthogonal to the others. That is soon so for a
    Hessian of low rank. Rows from there on say nothing; as zeros they have no
    weight.
    """
    overlap = jnp.abs(jnp.triu(basis @ basis.T, 1)).max(axis=0)  # with those before
    alive = jnp.cumprod(overlap < ORTHOGONAL).astype(bool)
    return jnp.where(alive & alive[:, None], tridiagonal, 0)


def hessian_product(
    loss: Callable[[Tree, Tree], jax.Array], params: Tree, batches: Tree
) -> Callable[[jax.Array], jax.Array]:
    """Returns `v -> H v` for vectors, one batch at a time.

    Forwards through the gradient: what the backward pass of a convolution costs on a
    CPU is then paid once, and its own gradient, which is slow, is never asked for.

    Args:
      loss: `(params, batch) -> scalar`.
      params: the place where the Hessian is taken.
      batches: batches of one size, along a leading axis, over which H is the mean.
    """
    vector, unravel = ravel_pytree(params)
    count = jax.tree.leaves(batches)[0].shape[0]

    def product(direction):
        def of_batch(total, batch):
            gradient = jax.grad(lambda x: loss(unravel(x), batch))
            return total + jax.jvp(gradient, (vector,), (direction,))[1], None

        total, _ = jax.lax.scan(of_batch, jnp.zeros(vector.shape), batches)
        return total / count

    return product


def largest(spectrum: Spectrum) -> jax.Array:
    """Returns the largest absolute eigenvalue that any probe of `spectrum` saw."""
    return jnp.abs(spectrum.values).max()


def spread(spectrum: Spectrum) -> jax.Array:
    """Returns how far the probes of `spectrum` are apart on the top eigenvalue.

    It is the range of what they saw, over the absolute value of its mean.
    """
    tops = spectrum.values.max(axis=1)
    return (tops.max() - tops.min()) / jnp.abs(tops.mean())


def intrinsic_dimension(spectrum: Spectrum) -> jax.Array:
    """Returns `sum |lambda| / max |lambda|` of `spectrum`, SAFL's Definition 3.1."""
    return intrinsic_dimensions(spectrum).mean()


def intrinsic_dimensions(spectrum: Spectrum) -> jax.Array:
    """Returns the intrinsic dimension as each probe of `spectrum` has it, [probes].

    Each has a sum of its own; the largest eigenvalue is that of all.
    """
    mean = (spectrum.weights * jnp.abs(spectrum.values)).sum(axis=1)
    return spectrum.d * mean / largest(spectrum)


def share_near_zero(spectrum: Spectrum, *, within: float = 0.01) -> jax.Array:
    """Returns which part of `spectrum` is below `within` of the largest eigenvalue.

    Both are absolute values.
    """
    small = jnp.abs(spectrum.values) < within * largest(spectrum)
    return (spectrum.weights * small).sum(axis=1).mean()


def density(
    spectrum: Spectrum, at: jax.Array | np.ndarray, *, width: float
) -> jax.Array:
    """Returns the density of eigenvalues at some places, of the shape of these.

    Args:
      spectrum: the spectrum, each of whose values is widened to a Gaussian.
      at: the places, shape=(n,).
      width: the standard deviation of the Gaussians.
    """
    off = (at[:, None, None] - spectrum.values) / width
    bells = jnp.exp(-(off**2) / 2) / (width * (2 * jnp.pi) ** 0.5)
    return (bells * spectrum.weights).sum(axis=2).mean(axis=1)
