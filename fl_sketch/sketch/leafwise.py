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
from fl_sketch.sketch.sampling import identity


def leaf_by_leaf(op: Sketch) -> Sketch:
    """Sketches every leaf of an update separately, with a share of the budget of `op`.

    A message is a tuple with one array per leaf, in the order of `jax.tree.leaves`.
    Leaves share the budget in proportion to their sizes, rounded down. A leaf is sent
    exactly if its sketch would be no shorter: also a share of less than one number
    takes one, and one for each row of an operator with rows. Messages exceed the budget
    by this alone.

    Args:
      op: any operator of fixed size.

    Returns:
      A Sketch of pytrees whose `zeros` and `size` need `like`.
    """
    budget, exact = op.size(), identity()
    resized = functools.cache(op.resize)  # each keeps the programs made of it

    def split(like: Like) -> list[Sketch]:
        """Returns the operator of every leaf."""
        if like is None or trees.is_length(like):
            msg = f"A sketch of every leaf needs a pytree, not like={like}."
            raise TypeError(msg)
        trees.require_floats(like)
        sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(like)]
        ops = []
        for size in sizes:
            share = max(1, budget * size // sum(sizes))
            part = resized(min(share, size))
            ops.append(exact if share >= size or part.size() >= size else part)
        return ops

    def parts(key: Key, like: Like):
        """Returns (operator, key, leaf) of every leaf."""
        require_key(key)
        ops, leaves = split(like), jax.tree.leaves(like)
        keys = [jax.random.fold_in(key, number) for number in range(len(ops))]
        return zip(ops, keys, leaves, strict=True)

    def apply(key: Key, tree: Tree) -> Message:
        return tuple(part.apply(own, leaf) for part, own, leaf in parts(key, tree))

    def reading(read: Callable) -> Callable:
        def read_like(key: Key, message: Message, like: Like) -> Tree:
            pairs = zip(parts(key, like), message, strict=True)
            leaves = [read(part)(own, s, leaf) for (part, own, leaf), s in pairs]
            return jax.tree.unflatten(jax.tree.structure(like), leaves)

        return read_like

    def zeros(like: Like | None = None) -> Message:
        pairs = zip(split(like), jax.tree.leaves(like), strict=True)
        return tuple(part.zeros(leaf) for part, leaf in pairs)

    def size(like: Like | None = None) -> int:
        pairs = zip(split(like), jax.tree.leaves(like), strict=True)
        return sum(part.size(leaf) for part, leaf in pairs)

    transpose = reading(lambda part: part.transpose)
    same = op.estimate is op.transpose
    return Sketch(
        apply=apply,
        transpose=transpose,
        estimate=transpose if same else reading(lambda part: part.estimate),
        zeros=zeros,
        size=size,
        resize=lambda numbers: leaf_by_leaf(op.resize(numbers)),
        fixed_key=op.fixed_key,
    )
