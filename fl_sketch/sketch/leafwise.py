"""A separate sketch of every leaf: the layer-wise layout, which SAFL's paper suggests.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import sketch
>>> update = {"kernel": jnp.ones((60, 10)), "bias": jnp.ones(10)}
>>> op = sketch.leaf_by_leaf(sketch.count_sketch(61))
>>> [part.shape for part in op.apply(jax.random.key(0), update)]
[(1, 1), (1, 60)]
"""

import functools
import math
from collections.abc import Callable

import jax

from fl_sketch.core import trees
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Like, Message, Sketch, Tree
from fl_sketch.sketch.from_vector import message_size
from fl_sketch.sketch.sampling import identity


def leaf_by_leaf(op: Sketch) -> Sketch:
    """Sketches every leaf of an update separately, with a share of the budget of `op`.

    A message is a tuple with one array per leaf, in the order of `jax.tree.leaves`.
    `split_budget` divides the budget. An operator with rows gives every leaf at least
    one number per row.

    Args:
      op: any operator of fixed size.

    Returns:
      A Sketch of pytrees whose `zeros` and `size` need `like`.
    """
    split = _splitting(op)

    def apply(key: Key, tree: Tree) -> Message:
        ops, leaves = split(tree), jax.tree.leaves(tree)
        parts = zip(ops, _leaf_keys(key, len(ops)), leaves, strict=True)
        return tuple(part.apply(leaf_key, leaf) for part, leaf_key, leaf in parts)

    def reading(read: Callable) -> Callable:
        def read_like(key: Key, message: Message, like: Like) -> Tree:
            ops, (leaves, treedef) = split(like), jax.tree.flatten(like)
            keys = _leaf_keys(key, len(ops))
            parts = zip(ops, keys, message, leaves, strict=True)
            leaves = [read(part)(k, s, leaf) for part, k, s, leaf in parts]
            return jax.tree.unflatten(treedef, leaves)

        return read_like

    def zeros(like: Like | None = None) -> Message:
        if like is None:
            msg = "Expected like (an update) for a leaf by leaf sketch, got like=None."
            raise ValueError(msg)
        parts = zip(split(like), jax.tree.leaves(like), strict=True)
        return tuple(part.zeros(leaf) for part, leaf in parts)

    transpose = reading(lambda part: part.transpose)
    same = op.estimate is op.transpose
    return Sketch(
        apply=apply,
        transpose=transpose,
        estimate=transpose if same else reading(lambda part: part.estimate),
        zeros=zeros,
        size=lambda like=None: message_size(jax.eval_shape(lambda: zeros(like))),
        resize=lambda numbers: leaf_by_leaf(op.resize(numbers)),
        fixed_key=op.fixed_key,
    )


def _splitting(op: Sketch) -> Callable[[Like], list[Sketch]]:
    """Returns `(like) -> an operator for every leaf`."""
    budget, exact = op.size(), identity()
    resized = functools.cache(op.resize)  # each keeps the programs made of it

    def split(like):
        if trees.is_length(like):
            msg = f"Expected the pytree whose leaves are sketched, got like={like}."
            raise TypeError(msg)
        trees.require_floats(like)
        sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(like)]
        shares = split_budget(budget, sizes)
        return [
            exact if share == size else resized(share)
            for share, size in zip(shares, sizes, strict=True)
        ]

    return split


def _leaf_keys(key: Key, count: int) -> list[Key]:
    require_key(key)
    return [jax.random.fold_in(key, number) for number in range(count)]


def split_budget(budget: int, sizes: list[int]) -> list[int]:
    """Returns how many numbers each leaf may send; its own size means exactly.

    Leaves share the budget in proportion to their sizes, rounded down. Each has at
    least one number and at most its size.

    >>> split_budget(61, [10, 600])
    [1, 60]
    """
    total = sum(sizes)
    return [min(size, max(1, budget * size // total)) for size in sizes]
