"""A sketch of every leaf by itself: the layer-wise layout.

SAFL names it as its open direction. The whole-tree layout is what every operator
does by itself.

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


def leaf_by_leaf(op: Sketch, exact_up_to: int = 0) -> Sketch:
    """Sketches every leaf of an update by itself, with the budget of `op` split up.

    A message is a tuple of one array a leaf, in the order of `jax.tree.leaves`; how
    the budget is divided is said at `split_budget`. An operator with rows gives every
    leaf at least one number a row.

    Args:
      op: any operator of fixed size.
      exact_up_to: leaves of at most so many numbers are sent as they are.

    Returns:
      A Sketch of pytrees whose `zeros` and `size` need `like`.
    """
    split = _splitting(op, exact_up_to)

    def apply(key: Key, tree: Tree) -> Message:
        ops, leaves = split(tree), jax.tree.leaves(tree)
        parts = zip(ops, _leaf_keys(key, len(ops)), leaves, strict=True)
        return tuple(part.apply(own, leaf) for part, own, leaf in parts)

    def rebuild(read):
        def rebuild_like(key: Key, message: Message, like: Like, *rest) -> Tree:
            ops, (leaves, treedef) = split(like), jax.tree.flatten(like)
            keys = _leaf_keys(key, len(ops))
            parts = zip(ops, keys, message, leaves, strict=True)
            return jax.tree.unflatten(
                treedef,
                [read(part)(own, s, leaf, *rest) for part, own, s, leaf in parts],
            )

        return rebuild_like

    def zeros(like: Like | None = None) -> Message:
        if like is None:
            msg = "A leaf by leaf sketch has a size only for a given update: pass like."
            raise ValueError(msg)
        leaves = jax.tree.leaves(like)
        return tuple(
            part.zeros(leaf) for part, leaf in zip(split(like), leaves, strict=True)
        )

    return Sketch(
        apply=apply,
        transpose=rebuild(lambda part: part.transpose),
        add_transpose=rebuild(lambda part: part.add_transpose),
        estimate=rebuild(lambda part: part.estimate),
        zeros=zeros,
        size=lambda like=None: message_size(jax.eval_shape(lambda: zeros(like))),
        resize=lambda numbers: leaf_by_leaf(op.resize(numbers), exact_up_to),
        fixed_key=op.fixed_key,
    )


def _splitting(op: Sketch, exact_up_to: int) -> Callable[[Like], list[Sketch]]:
    """Returns `(like) -> an operator for every leaf`."""
    budget, exact = op.size(), identity()
    resized = functools.cache(op.resize)  # each keeps the programs made of it

    def split(like):
        if trees.is_length(like):
            msg = f"Expected the pytree whose leaves are sketched, got like={like}."
            raise TypeError(msg)
        trees.require_floats(like)
        sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(like)]
        shares = split_budget(budget, sizes, exact_up_to)
        return [
            exact if share == size else resized(share)
            for share, size in zip(shares, sizes, strict=True)
        ]

    return split


def _leaf_keys(key: Key, count: int) -> list[Key]:
    """Returns a key for every leaf."""
    require_key(key)
    return [jax.random.fold_in(key, number) for number in range(count)]


def split_budget(budget: int, sizes: list[int], exact_up_to: int = 0) -> list[int]:
    """Returns how many numbers each leaf may send; its own size means exactly.

    Leaves of at most `exact_up_to` numbers are paid for first and sent exactly. The
    others share what is left in proportion to their sizes, rounded down, but every
    leaf gets at least one number, and none more than it has.

    >>> split_budget(61, [10, 600])
    [1, 60]
    >>> split_budget(61, [10, 600], exact_up_to=16)
    [10, 51]

    Args:
      budget: numbers of all leaves together; the small ones may take more than that.
      sizes: numbers that each leaf has.
      exact_up_to: the largest size that is sent exactly.
    """
    small = sum(size for size in sizes if size <= exact_up_to)
    left, sharing = max(budget - small, 0), max(sum(sizes) - small, 1)
    return [
        size if size <= exact_up_to else min(size, max(1, left * size // sharing))
        for size in sizes
    ]
