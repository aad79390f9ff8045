"""The subsampled randomised Hadamard transform."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.core.hashing import (
    flip,
    sample_without_replacement,
    sign_mask,
    sign_seeds,
)
from fl_sketch.core.platforms import by_platform
from fl_sketch.core.protocols import Sketch
from fl_sketch.core.trees import LARGEST, varying_like
from fl_sketch.sketch import hadamard_gpu
from fl_sketch.sketch.from_vector import on_trees
from fl_sketch.sketch.hadamard_gpu import matrix

CPU_FACTOR = 64  # H_64 is one matmul, then four butterflies at a time
MATMUL_FACTOR = 256  # on accelerators every factor is a matmul


def srht(b: int) -> Sketch:
    """Returns R = sqrt(n/b) S H D, with n the next power of two from d on, b <= n.

    D is diagonal with random signs, H the orthonormal Walsh-Hadamard matrix and S takes
    b of the n rows without replacement. For x of length d <= n,

      `E|R^T R x - x|^2 = (d-1)/(n-1) (n/b - 1) |x|^2`.

    Derivation: let q_k = (n/b)[row k taken] - 1 and A = H diag(q) H. The error is
    D A D x, cut to d places, and since signs are independent its mean square is
    sum_{i,j <= d} E[A_ij^2] x_j^2. A_ii = sum_k q_k / n = 0, since exactly b rows are
    taken. For i != j, A_ij = sum_k h_k q_k / n with signs h_k that sum to zero; with
    var q = n/b - 1 and cov(q_k, q_l) = -var/(n-1), E[A_ij^2] = var/(n-1).

    Reference: Song et al., Definition D.3.
    """
    validate.at_least_one(b=b)
    scale = 1 / math.sqrt(b)  # sqrt(n/b) times H's 1/sqrt(n)

    def shape(d):
        if d is not None:
            validate.at_most(_padded(d), f"the rows of H for {d} numbers", b=b)
        return (b,)

    def draw(key, d):
        """Returns the seeds of D, a shape of n numbers, and the rows of S in it."""
        n = _padded(d)
        key_rows, key_signs = jax.random.split(key)
        rows = sample_without_replacement(key_rows, b, n)
        seeds = sign_seeds(key_signs, 1)
        if n <= LARGEST:
            return seeds, (n,), (rows,)
        half = n // 2  # of 2^31, which int32 cannot say
        high, low = jnp.divmod(rows.astype(jnp.uint32), half)
        return seeds, (2, half), (high.astype(jnp.int32), low.astype(jnp.int32))

    def apply(key, x):
        seeds, shape, rows = draw(key, x.size)
        return _mixed(math.prod(shape), seeds, x).reshape(shape)[rows] * scale

    def transpose(key, s, d):
        seeds, shape, rows = draw(key, d)
        spread = varying_like(jnp.zeros(shape), s, key)
        spread = spread.at[rows].set(s * scale, unique_indices=True)
        return _unmixed(d, seeds, spread.reshape(-1))

    return on_trees(shape=shape, apply=apply, transpose=transpose, resize=srht)


def rotated(key: jax.Array, x: jax.Array) -> jax.Array:
    """Returns H D x of a vector, padded with zeros to a power of two; of its length.

    All numbers of the result are about as large, whatever `x` is.
    """
    n = _padded(x.size)
    return _mixed(n, sign_seeds(key, 1), x) / math.sqrt(n)


def rotated_back(key: jax.Array, y: jax.Array, d: int) -> jax.Array:
    """Returns the `d` numbers of which `rotated` made `y` with the same key."""
    return _unmixed(d, sign_seeds(key, 1), y) / math.sqrt(y.size)


def _padded(d: int) -> int:
    return 1 << (d - 1).bit_length()


def _mixed(n: int, seeds: jax.Array, x: jax.Array) -> jax.Array:
    """Returns H D x of `x` padded to n numbers, unnormalised."""

    def plain(seeds, x):
        signed = flip(x, sign_mask(seeds, lax.iota(jnp.uint32, x.size), 0))
        return walsh_hadamard(jnp.pad(signed, (0, n - x.size)))

    mixing = hadamard_gpu.Mixing(x.size, n)
    kernel = functools.partial(hadamard_gpu.mixed, mixing)
    return by_platform(seeds, x, default=plain, cuda=mixing.possible and kernel)


def _unmixed(d: int, seeds: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the first d numbers of D H y, unnormalised."""

    def plain(seeds, y):
        return flip(walsh_hadamard(y)[:d], sign_mask(seeds, lax.iota(jnp.uint32, d), 0))

    mixing = hadamard_gpu.Mixing(d, y.size)
    kernel = functools.partial(hadamard_gpu.unmixed, mixing)
    return by_platform(seeds, y, default=plain, cuda=mixing.possible and kernel)


def walsh_hadamard(x: jax.Array) -> jax.Array:
    """Returns the unnormalised Walsh-Hadamard transform of `x`, a vector of length 2^k.

    It is made of butterflies on CPUs and of matmuls elsewhere, as is faster there.
    """
    return by_platform(
        x, cpu=walsh_hadamard_by_butterflies, default=walsh_hadamard_by_matmuls
    )


def walsh_hadamard_by_butterflies(x: jax.Array) -> jax.Array:
    """Returns the transform of `x` by one matmul, then four-point butterflies.

    The matmul, on the innermost factor, replaces the passes whose stride is shorter
    than a vector register.
    """
    inner = min(CPU_FACTOR, x.size)
    rows, stride = x.reshape(-1, inner), inner
    x = jnp.matmul(rows, matrix(inner), precision=lax.Precision.HIGHEST).ravel()
    while stride < x.size:
        radix = 4 if 4 * stride <= x.size else 2
        parts = x.reshape(-1, radix, stride)
        even, odd = parts[:, 0::2], parts[:, 1::2]
        pairs = [even + odd, even - odd]  # the butterflies of distance one
        if radix == 4:
            pairs = [p[:, :1] + p[:, 1:] for p in pairs] + [
                p[:, :1] - p[:, 1:] for p in pairs
            ]
        x, stride = jnp.concatenate(pairs, axis=1).reshape(-1), stride * radix
    return x


def walsh_hadamard_by_matmuls(x: jax.Array) -> jax.Array:
    """Returns the transform of `x` by a matmul for each factor of H_n.

    H_n is a Kronecker product of smaller ones, of at most `MATMUL_FACTOR` rows.
    """
    n, stride = x.size, 1
    while stride < n:
        factor = min(MATMUL_FACTOR, n // stride)
        x = x.reshape(-1, factor, stride)
        x = jnp.einsum(
            "fg,agh->afh", matrix(factor), x, precision=lax.Precision.HIGHEST
        )
        stride *= factor
    return x.reshape(n)
