"""The eigenvalues of a Hessian, without the Hessian.

A few steps of Lanczos from a random vector turn products with the Hessian into a small
tridiagonal matrix. Its eigenvalues, weighted by the squared first components of its
eigenvectors, are a quadrature rule for the spectrum as that vector sees it. The mean
over vectors is the spectrum's density (stochastic Lanczos quadrature).

The sum of absolute values needs care. Most eigenvalues are at the kink, and the error
of the rule changes from one step to the next as one of its nodes comes near zero. So an
estimate is the median of the rules of all sizes from half the steps on. `bounds` are
the extremes over all spectra with the same moments. The least has a node at zero (a
rule of Gauss and Radau); more steps bring both nearer.

>>> import jax, jax.numpy as jnp
>>> values = jnp.array([0.0, 0.0, 0.0, 4.0, 4.0])
>>> loss = lambda params, batch: values @ params**2 / 2
>>> found = of_loss(
...     loss, jnp.ones(5), jnp.zeros((1, 1)), jax.random.key(0), probes=8, steps=4)
>>> round(largest(found), 3), round(float(intrinsic_dimensions(found).mean()), 3)
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

from fl_sketch.audit.devices import on_all
from fl_sketch.core import trees, validate
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Tree

ORTHOGONAL = 1e-2  # cosines of Lanczos' vectors, in float32 some 1e-6
NODES = 40  # tried for the largest sum |lambda|, before a finer search
NEAR = 1e-8  # of the largest: closer nodes would make a corner too large


class Spectrum(NamedTuple):
    """What each probe saw of the eigenvalues of a d-by-d matrix.

    The matrices of Lanczos have zeros after the step that has seen everything.
    """

    tridiagonal: jax.Array | np.ndarray  # [probes, steps, steps]
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

    It costs probes * steps products, each about two gradients, and memory for `steps`
    vectors of length d.
    """
    require_key(key)
    d = trees.size(params)
    validate.at_least_one(probes=probes, steps=steps)
    validate.at_most(d, "the numbers of the parameters", steps=steps)
    product = hessian_product(loss, params, batches)
    tridiagonal = decomp.tridiag_sym(steps, reortho="full", materialize=True)

    def of_probe(key):
        """Returns a probe's matrix, with zeros after a breakdown.

        Once the products span all that the probe can reach, the rest of the next one is
        rounding, and no longer orthogonal to the others. That happens early for a
        Hessian of low rank. Rows after that mean nothing; as zeros they have no weight.
        """
        lanczos = tridiagonal(product, jax.random.rademacher(key, (d,), jnp.float32))
        basis = jnp.asarray(lanczos.Q_tall)
        overlap = jnp.abs(jnp.triu(basis @ basis.T, 1)).max(axis=0)  # with those before
        alive = jnp.cumprod(overlap < ORTHOGONAL).astype(bool)
        return jnp.where(alive & alive[:, None], jnp.asarray(lanczos.J_small), 0)

    over = functools.partial(jax.lax.map, of_probe)
    if mesh is not None:
        over = on_all(of_probe, mesh)
    return Spectrum(over(jax.random.split(key, probes)), d)


def hessian_product(
    loss: Callable[[Tree, Tree], jax.Array], params: Tree, batches: Tree
) -> Callable[[jax.Array], jax.Array]:
    """Returns `v -> H v` for the mean H over batches, one batch at a time.

    It differentiates forwards through the gradient. The backward pass of a convolution,
    which is expensive on a CPU, is then computed once, and never differentiated.
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

    A weight is the fraction of the spectrum near a value. The rule is that of the first
    `steps` steps; 0: of all.
    """
    steps = steps or spectrum.tridiagonal.shape[1]
    pairs = [
        _eigen(np.diag(matrix)[:steps], np.diag(matrix, 1)[: steps - 1])
        for matrix in np.asarray(spectrum.tridiagonal, np.float64)
    ]
    return np.stack([v for v, _ in pairs]), np.stack([u[0] ** 2 for _, u in pairs])


def rules(spectrum: Spectrum) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the rules of all sizes from half the steps of `spectrum` to all."""
    steps = spectrum.tridiagonal.shape[1]
    return [rule(spectrum, size) for size in range(max(1, steps // 2), steps + 1)]


def largest(spectrum: Spectrum) -> float:
    """Returns the largest absolute eigenvalue that any probe saw."""
    return float(np.abs(rule(spectrum)[0]).max())


def spread(spectrum: Spectrum) -> float:
    """Returns the range of the top eigenvalue over probes, over its mean's size."""
    tops = rule(spectrum)[0].max(axis=1)
    return float(np.ptp(tops) / abs(tops.mean()))


def intrinsic_dimensions(spectrum: Spectrum) -> np.ndarray:
    """Returns the intrinsic dimension by each probe, the median of its rules, [probes].

    It is `sum |lambda| / max |lambda|`, SAFL's Definition 3.1. The largest eigenvalue
    is that of all probes.
    """
    means = [_mean_of_sizes(*pair) for pair in rules(spectrum)]
    return spectrum.d * np.median(means, axis=0) / largest(spectrum)


def bounds(spectrum: Spectrum) -> tuple[float, float]:
    """Returns the least and the largest possible intrinsic dimension.

    They are for the mean over the probes: more steps bring them nearer, more probes do
    not. A spectrum with the moments that a probe has seen, and no more nodes than
    needed, follows from one node between two neighbours of a rule. The extremes of `sum
    |lambda|` are among these, the least with a node at zero.
    """
    extremes = [_extremes(np.asarray(one, float)) for one in spectrum.tridiagonal]
    least, most = spectrum.d * np.mean(extremes, axis=0) / largest(spectrum)
    return float(least), float(most)


def share_near_zero(spectrum: Spectrum, *, within: float = 0.01) -> float:
    """Returns the fraction of eigenvalues below `within` of the largest, in size."""
    edge = within * largest(spectrum)
    parts = [
        (weights * (np.abs(values) < edge)).sum(axis=1)
        for values, weights in rules(spectrum)
    ]
    return float(np.mean(parts))


def density(spectrum: Spectrum, at: np.ndarray, *, width: float) -> np.ndarray:
    """Returns the density of eigenvalues at the values `at`, shape=(n,).

    Each eigenvalue is widened to a Gaussian of standard deviation `width`.
    """
    values, weights = rule(spectrum)
    bells = np.exp(-(((at[:, None] - values.ravel()) / width) ** 2) / 2)
    return bells @ weights.ravel() / (len(values) * width * (2 * np.pi) ** 0.5)


def _extremes(tridiagonal: np.ndarray) -> tuple[float, float]:
    """Returns the least and the most mean absolute eigenvalue of one probe."""
    diagonal, off_diagonal = np.diag(tridiagonal), np.diag(tridiagonal, 1)
    values, vectors = _eigen(diagonal, off_diagonal)
    exact = float(_mean_of_sizes(values, vectors[0] ** 2))
    if not off_diagonal.size or not off_diagonal.all():
        return exact, exact  # Lanczos has seen everything, or only a mean
    inner, last = _eigen(diagonal[:-1], off_diagonal[:-1])
    pull, edge = (off_diagonal[-1] * last[-1]) ** 2, 2 * np.abs(values).max()

    def mean_with(node):
        apart = inner - node
        apart = np.where(np.abs(apart) < NEAR * edge, NEAR * edge, apart)
        corner = node + (pull / apart).sum()
        values, vectors = _eigen(np.append(diagonal[:-1], corner), off_diagonal)
        return float(_mean_of_sizes(values, vectors[0] ** 2))

    after = np.searchsorted(inner, 0)
    left, right = np.concatenate([[-edge], inner, [edge]])[after : after + 2]
    nodes = left + (right - left) * (1 - np.cos(np.linspace(0, np.pi, NODES))) / 2
    means = [mean_with(node) for node in nodes]
    top = int(np.clip(np.argmax(means), 1, NODES - 2))
    finer = optimize.minimize_scalar(
        lambda node: -mean_with(node),
        bounds=(nodes[top - 1], nodes[top + 1]),
        method="bounded",
    )
    return mean_with(0.0), max(*means, exact, -float(finer.fun))  # pyright: ignore[reportAttributeAccessIssue]


def _eigen(diagonal: np.ndarray, off_diagonal: np.ndarray):
    """Returns (values, vectors) of a symmetric tridiagonal matrix, values ascending."""
    if not off_diagonal.size:
        return diagonal, np.ones((1, 1))
    return linalg.eigh_tridiagonal(diagonal, off_diagonal)


def _mean_of_sizes(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (np.abs(values) * weights).sum(axis=-1)
