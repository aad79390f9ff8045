"""The eigenvalues of a Hessian, without the Hessian.

A few steps of Lanczos from a random vector turn products with the Hessian into a small
tridiagonal matrix. Its eigenvalues, weighted with the squared first components of its
eigenvectors, have the moments of the whole spectrum as that vector sees it. The mean
over vectors is the spectrum's density (stochastic Lanczos quadrature).

The sum of absolute values needs care. Their kink is where most eigenvalues are, and
the rule's error there changes from one step to the next, as one of its places comes
near zero. So an estimate is the median of the rules of all sizes from half the steps
on, and `bounds` are the least and the most that any spectrum with the same moments has.
The least has a place at zero (a rule of Gauss and Radau); with more steps both come
nearer.

>>> import jax, jax.numpy as jnp
>>> values = jnp.array([0.0, 0.0, 0.0, 4.0, 4.0])
>>> loss = lambda params, batch: values @ params**2 / 2
>>> found = of_loss(
...     loss, jnp.ones(5), jnp.zeros((1, 1)), jax.random.key(0), probes=8, steps=4)
>>> round(largest(found), 3), round(intrinsic_dimension(found), 3)
(4.0, 2.0)
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matfree import decomp
from scipy import linalg, optimize

from fl_sketch import engine
from fl_sketch.core import trees, validate
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Tree

ORTHOGONAL = 1e-2  # cosines of Lanczos' vectors, in float32 some 1e-6
PLACES = 40  # tried for the most that sum |lambda| may be, before a finer search
NEAR = 1e-8  # of the largest: closer places would make a corner too large


class Spectrum(NamedTuple):
    """What each probe saw of the eigenvalues of a d-by-d matrix.

    Attributes:
      tridiagonal: the matrix that Lanczos made, shape=(probes, steps, steps); with
        zeros from the step on at which it had seen all.
      d: the number of eigenvalues.
    """

    tridiagonal: jax.Array | np.ndarray
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
        return _up_to_breakdown(found.Q_tall, found.J_small)  # pyright: ignore[reportArgumentType]

    over = functools.partial(jax.lax.map, of_probe)
    if mesh is not None:
        over = engine.on_all(of_probe, mesh)
    return Spectrum(over(jax.random.split(key, probes)), d)


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


def rule(spectrum: Spectrum, steps: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns (values, weights) of each probe, shape=(probes, steps), ascending.

    A weight is the share of the spectrum near a value; their sum is 1 for each probe.

    Args:
      spectrum: the spectrum.
      steps: the number of steps that are looked at, from the first; 0: all.
    """
    steps = steps or spectrum.tridiagonal.shape[1]
    found = [
        _eigen(np.diag(one)[:steps], np.diag(one, 1)[: steps - 1])
        for one in np.asarray(spectrum.tridiagonal, np.float64)
    ]
    return np.stack([v for v, _ in found]), np.stack([u[0] ** 2 for _, u in found])


def rules(spectrum: Spectrum) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the rules of a `spectrum` with half its steps, with one more, to all."""
    steps = spectrum.tridiagonal.shape[1]
    return [rule(spectrum, size) for size in range(max(1, steps // 2), steps + 1)]


def largest(spectrum: Spectrum) -> float:
    """Returns the largest absolute eigenvalue that any probe of `spectrum` saw."""
    return float(np.abs(rule(spectrum)[0]).max())


def spread(spectrum: Spectrum) -> float:
    """Returns how far the probes of `spectrum` are apart on the top eigenvalue.

    It is the range of what they saw, over the absolute value of its mean.
    """
    tops = rule(spectrum)[0].max(axis=1)
    return float(np.ptp(tops) / abs(tops.mean()))


def intrinsic_dimension(spectrum: Spectrum) -> float:
    """Returns `sum |lambda| / max |lambda|` of `spectrum`, SAFL's Definition 3.1."""
    return float(intrinsic_dimensions(spectrum).mean())


def intrinsic_dimensions(spectrum: Spectrum) -> np.ndarray:
    """Returns the intrinsic dimension as each probe of a `spectrum` has it, [probes].

    It is the median of the probe's rules; the largest eigenvalue is that of all.
    """
    means = [_mean_of_sizes(*found) for found in rules(spectrum)]
    return spectrum.d * np.median(means, axis=0) / largest(spectrum)


def bounds(spectrum: Spectrum) -> tuple[float, float]:
    """Returns the least and the most that the intrinsic dimension may be.

    They hold for the mean over the probes of a `spectrum`: more steps bring them
    nearer, more probes do not. Spectra with the moments that a probe has seen, and no
    more places than needed, are known by one place between two neighbours of a rule;
    the extremes of `sum |lambda|` are among them, the least at a place of zero.
    """
    found = [_extremes(np.asarray(one, float)) for one in spectrum.tridiagonal]
    least, most = spectrum.d * np.mean(found, axis=0) / largest(spectrum)
    return float(least), float(most)


def _extremes(tridiagonal: np.ndarray) -> tuple[float, float]:
    """Returns the least and the most mean absolute eigenvalue of one probe."""
    diagonal, beside = np.diag(tridiagonal), np.diag(tridiagonal, 1)
    values, vectors = _eigen(diagonal, beside)
    exact = float(_mean_of_sizes(values, vectors[0] ** 2))
    if not beside.size or not beside.all():
        return exact, exact  # Lanczos has seen all; or nothing but a mean
    inner, last = _eigen(diagonal[:-1], beside[:-1])
    pull, edge = (beside[-1] * last[-1]) ** 2, 2 * np.abs(values).max()

    def mean_with(place):
        apart = inner - place
        apart = np.where(np.abs(apart) < NEAR * edge, NEAR * edge, apart)
        corner = place + (pull / apart).sum()
        values, vectors = _eigen(np.append(diagonal[:-1], corner), beside)
        return float(_mean_of_sizes(values, vectors[0] ** 2))

    after = np.searchsorted(inner, 0)
    left, right = np.concatenate([[-edge], inner, [edge]])[after : after + 2]
    turns = (1 - np.cos(np.linspace(0, np.pi, PLACES))) / 2
    places = left + (right - left) * turns
    means = [mean_with(place) for place in places]
    top = int(np.clip(np.argmax(means), 1, PLACES - 2))
    finer = optimize.minimize_scalar(
        lambda place: -mean_with(place),
        bounds=(places[top - 1], places[top + 1]),
        method="bounded",
    )
    return mean_with(0.0), max(*means, exact, -float(finer.fun))  # pyright: ignore[reportAttributeAccessIssue]


def _eigen(diagonal: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (values, vectors) of a symmetric tridiagonal matrix, values ascending."""
    if not beside.size:
        return diagonal, np.ones((1, 1))
    return linalg.eigh_tridiagonal(diagonal, beside)  # pyright: ignore[reportReturnType]


def _mean_of_sizes(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (np.abs(values) * weights).sum(axis=-1)


def share_near_zero(spectrum: Spectrum, *, within: float = 0.01) -> float:
    """Returns which part of `spectrum` is below `within` of the largest eigenvalue.

    Both are absolute values.
    """
    edge = within * largest(spectrum)
    parts = [
        (weights * (np.abs(values) < edge)).sum(axis=1)
        for values, weights in rules(spectrum)
    ]
    return float(np.mean(parts))


def density(spectrum: Spectrum, at: np.ndarray, *, width: float) -> np.ndarray:
    """Returns the density of eigenvalues at some places, of the shape of these.

    Args:
      spectrum: the spectrum, each of whose values is widened to a Gaussian.
      at: the places, shape=(n,).
      width: the standard deviation of the Gaussians.
    """
    values, weights = rule(spectrum)
    bells = np.exp(-(((at[:, None] - values.ravel()) / width) ** 2) / 2)
    return bells @ weights.ravel() / (len(values) * width * (2 * np.pi) ** 0.5)
