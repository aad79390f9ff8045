"""Low-rank adaptation: an array W that does not train, plus a product that does.

Hu et al. (2022): W + alpha/rank B A, where A is random and B is zero at first, so
training starts from W. It transforms arrays by name and needs no layer. The factors of
an array NAME are NAME/lora_a and NAME/lora_b. NAME/lora_scale, an array that does not
train, is alpha/rank.

An array of more than two axes is a matrix whose rows are its first axes and whose
columns are the others. It is divided where the shorter side of that matrix is longest;
of equals, at the last place. Kernels of attention, (width, heads, size) or (heads,
size, width), and of convolutions, (height, width, inputs, outputs), are thereby
divided into inputs and outputs where these have about the same length.

A belongs to the shorter side of the matrix, and begins with orthonormal rows. Of one
step of SGD with the rate eta along the gradient G, B becomes -eta alpha/rank A G (or
the transpose), and A stays as it is, since B was zero. So the matrix changes by
-eta (alpha/rank)^2 A^T A G. With the rank of the shorter side and alpha = rank, A^T A
is the identity, and the step is that of training the array itself. With a lower rank
A^T A is a projection on a random subspace.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fl_sketch.core.protocols import Key

A, B, SCALE = "lora_a", "lora_b", "lora_scale"
Arrays = Mapping[str, Any]


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the rows and columns of an array of two axes or more as a matrix.

    >>> [matrix_shape(shape) for shape in ((64, 4, 16), (4, 16, 64), (3, 3, 8, 16))]
    [(64, 64), (64, 64), (72, 16)]
    """
    total = math.prod(shape)
    heights = [math.prod(shape[:place]) for place in range(1, len(shape))]
    rows = max(reversed(heights), key=lambda height: min(height, total // height))
    return rows, total // rows


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """Returns whether an array is one, and no vector: a bias never is.

    Those of attention have two axes, heads and the size of one.
    """
    return len(shape) > 1 and re.split(r"[/.]", name)[-1] != "bias"


def factors(
    key: Key, name: str, shape: tuple[int, ...], rank: int
) -> dict[str, jax.Array]:
    """Returns the first factors of the array `name` by their names."""
    rows, columns = matrix_shape(shape)
    short, long = sorted((rows, columns))
    random = jax.nn.initializers.orthogonal()(key, (rank, short), jnp.float32)
    zeros = jnp.zeros((rank, long), jnp.float32)
    pair = (random.T, zeros) if rows <= columns else (random, zeros.T)
    return dict(zip((f"{name}/{A}", f"{name}/{B}"), pair, strict=True))


def merged(trained: Arrays, frozen: Arrays) -> dict[str, Any]:
    """Returns all arrays of a model by name: as they are, or plus their products."""
    arrays = {**frozen, **trained}
    scaled = [name for name in arrays if f"{name}/{SCALE}" in frozen]
    added = {f"{name}/{part}" for name in scaled for part in (A, B, SCALE)}
    whole = {name: arrays[name] for name in arrays if name not in added}
    for name in scaled:
        scale, *pair = (arrays[f"{name}/{part}"] for part in (SCALE, A, B))
        rows, columns = matrix_shape(whole[name].shape)
        left, right = pair if rows <= columns else pair[::-1]
        moved = scale * (left @ right).reshape(whole[name].shape)
        whole[name] = (whole[name] + moved).astype(whole[name].dtype)
    return whole
