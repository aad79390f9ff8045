"""Updates as vectors and back, and checks of their shapes."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core.protocols import Like, Tree

FLOATS = ("float32", "bfloat16", "float16")
LARGEST = 2**31 - 1  # coordinates are numbered by int32
MODEL = "model"  # the axis of a mesh whose devices hold a model together


class Stateful(NamedTuple):
    """A model with parameters, and statistics as batch normalisation keeps them.

    The `params` are trained; a pass over a batch changes the `state`, floats.
    """

    params: Tree
    state: Tree


def trained(model: Tree) -> Tree:
    """Returns the parameters of a `model`: `params` if it is `Stateful`, or itself."""
    return model.params if isinstance(model, Stateful) else model


def like_model(model: Tree, params: Tree, state: Tree) -> Tree:
    """Returns a model of the kind of `model` with these parts."""
    return Stateful(params, state) if isinstance(model, Stateful) else params


def named_leaves(tree: Tree) -> list[tuple[str, jax.Array]]:
    """Returns (path, leaf) of every leaf of `tree`; files use the same paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in leaves
    ]


def require_floats(tree: Tree) -> None:
    """Raises unless `tree` is a non-empty pytree of floats that can be sketched."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    total = 0
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if str(dtype) not in FLOATS:
            where = jax.tree_util.keystr(path) or "the update"
            got = f"dtype {dtype}" if dtype is not None else repr(leaf)
            msg = (
                f"Expected {where} to be an array of {' or '.join(FLOATS)}, got {got}."
            )
            raise TypeError(msg)
        total += math.prod(leaf.shape)
    if not 0 < total <= LARGEST:
        msg = f"Expected an update of 1 to {LARGEST} numbers, got {total}."
        raise ValueError(msg)


def is_length(like: Like) -> bool:
    """Returns whether `like` is the length of a vector rather than an update."""
    return isinstance(like, int | np.integer)


def size(like: Like) -> int:
    """Returns how many numbers an update like `like` has; an int is returned as is.

    >>> size(7), size({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
    (7, 9)
    """
    if is_length(like):
        if not 0 < like <= LARGEST:
            msg = f"Expected d to be an integer in [1, {LARGEST}], got d={like}."
            raise ValueError(msg)
        return int(like)
    require_floats(like)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))


def count(tree: Tree) -> int:
    """Returns how many numbers of any kind a tree of arrays has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def cut(shape: tuple[int, ...], parts: int) -> int | None:
    """Returns the axis along which an array is cut into equal parts; None: it is not.

    It is the longest axis that the number of parts divides, and the last of equal ones.
    For three axes it is the shortest, since attention arrays have one axis of heads.

    >>> cut((1000, 4096), 8), cut((1024, 16, 64), 8), cut((30,), 8)
    (1, 1, None)
    """
    fitting = [axis for axis, size in enumerate(shape) if size and size % parts == 0]
    if parts == 1 or not fitting:
        return None
    if len(shape) == 3:
        return min(fitting, key=lambda axis: (shape[axis], -axis))
    return max(fitting, key=lambda axis: (shape[axis], axis))


def cut_here(tree: Tree) -> Tree:
    """Returns a gradient, cut like its model if several devices hold the model.

    Without this the compiler may gather activations on every device to compute whole
    gradients of layers, and cut these again for the sketch.
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = mesh.shape.get(MODEL, 1)
    if parts == 1 or MODEL in mesh.manual_axes:
        return tree

    def cut_leaf(leaf):
        axis = cut(leaf.shape, parts)
        if axis is None:
            return leaf
        sharding = NamedSharding(mesh, P(*[None] * axis, MODEL))
        return jax.lax.with_sharding_constraint(leaf, sharding)

    return jax.tree.map(cut_leaf, tree)


def ravel(tree: Tree) -> jax.Array:
    """Returns the numbers of an update as one vector; a bare vector is not copied.

    Leaves are written one after the other. XLA for CPUs would fuse a concatenation with
    the computation of the leaves, and look up the leaf of every number. This takes a
    tenth of a round on W1 of `bench/engine_forms.py`.
    """
    require_floats(tree)
    leaves = jax.tree.leaves(tree)
    if len(leaves) == 1:
        return jnp.ravel(leaves[0])
    dtype, first = jnp.result_type(*leaves), 0
    vector = jnp.zeros(size(tree), dtype)
    for leaf in leaves:
        part = jnp.ravel(leaf).astype(dtype)
        vector = jax.lax.dynamic_update_slice(vector, part, (first,))
        first += leaf.size
    return vector


def unraveler(like: Like) -> Callable[[jax.Array], Tree]:
    """Returns the inverse of `ravel` for updates like `like`; for an int, identity."""
    if is_length(like):
        return lambda vector: vector
    require_floats(like)
    leaves, treedef = jax.tree.flatten(like)
    sizes = [math.prod(leaf.shape) for leaf in leaves]

    def unravel(vector: jax.Array) -> Tree:
        parts = jnp.split(vector, list(itertools.accumulate(sizes[:-1])))
        shaped = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, shaped)

    return unravel


def finite(tree: Tree) -> jax.Array:
    """Returns whether all numbers of `tree` are finite, bool []."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return functools.reduce(jnp.logical_and, leaves)


def if_finite(tree: Tree, otherwise: Tree) -> Tree:
    """Returns `tree`, or all of `otherwise` if any number of it is not finite.

    >>> float(if_finite(jnp.float32(jnp.nan), jnp.float32(2.0)))
    2.0
    """
    good = finite(tree)
    return jax.tree.map(lambda new, old: jnp.where(good, new, old), tree, otherwise)


def varying_like(value: jax.Array, *others: jax.Array) -> jax.Array:
    """Returns `value`, marked as varying over the same devices as `others`.

    A loop carry must have one type throughout. Zeros are the same on all devices of a
    shard_map, and the values that are added to them are not. The selection only carries
    the type; XLA removes it.
    """
    for other in others:
        if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
            other = jax.random.key_data(other)
        value = jnp.where(False, other.ravel()[0].astype(value.dtype), value)
    return value
