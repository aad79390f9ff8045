"""A sketch of a model that lies on several devices: each sketches what it holds.

The columns of R are those of its parts side by side, R = [R_1 ... R_m R_0], each with
a key of its own: `R x = sum_j R_j x_j`. Parts are whatever `trees.cut` cuts; arrays
that cannot be cut are R_0's. Signs of different parts are independent, so that
`E[R^T R] = I` as before. What crosses between the devices is one sum of b numbers.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import sketch
>>> op, update = sketch.sharded(sketch.count_sketch(50), 4), {"w": jnp.ones((20, 10))}
>>> op.apply(jax.random.key(0), update).shape
(1, 50)
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from fl_sketch.core import trees, validate
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Like, Message, Sketch, Tree

Leaves = list[jax.Array]


def sharded(op: Sketch, parts: int, axis: str = trees.MODEL) -> Sketch:
    """Sketches every part of an update by itself, and adds up what comes of them.

    Inside a mesh with such an axis, of `parts` devices, each device sketches the part
    that it holds; elsewhere parts are sketched one after the other. Both are the same
    map. A part shorter than a message is sent in as many numbers as it has.

    Args:
      op: any operator of fixed size, with random signs.
      parts: the number of parts.
      axis: the name of the axis of the mesh.

    Returns:
      A Sketch of pytrees, whose messages are shaped as those of `op`.
    """
    validate.at_least_one(parts=parts)
    own = _Parts(op, parts, axis)
    return Sketch(
        apply=own.apply,
        transpose=own.reading(lambda part: part.transpose),
        add_transpose=own.reading(lambda part: part.add_transpose, adds=True),
        estimate=own.reading(lambda part: part.estimate),
        zeros=lambda like=None: op.zeros(),
        size=lambda like=None: op.size(),
        resize=lambda numbers: sharded(op.resize(numbers), parts, axis),
        fixed_key=op.fixed_key,
    )


class _Parts:
    """How an operator is applied and read in parts; see `sharded`."""

    def __init__(self, op: Sketch, parts: int, axis: str):
        """Keeps an operator for each length of a part."""
        self._fitting = functools.cache(lambda d: op.resize(min(op.size(), d)))
        self._whole, self._parts, self._axis = op.zeros().shape, parts, axis

    def apply(self, key: Key, tree: Tree) -> Message:
        """Returns the message of an update."""
        require_key(key)
        cut = _Cut(tree, self._parts, self._axis)
        rest = self._said(key, self._parts, cut.rest) if cut.rest else 0
        return cut.added(self._said, key) + rest

    def _said(self, key: Key, number, leaves: Leaves) -> Message:
        """Returns the message of the part of this number."""
        own = self._fitting(trees.size(leaves))
        message = own.apply(jax.random.fold_in(key, number), leaves)
        sizes = zip(self._whole, message.shape, strict=True)
        return jnp.pad(message, [(0, most - size) for most, size in sizes])

    def reading(self, read: Callable, *, adds: bool = False) -> Callable:
        """Returns what makes an update of a message.

        Args:
          read: `(operator) -> function` of a key, a message, leaves and what follows.
          adds: whether that reads the leaves.
        """

        def read_like(key: Key, message: Message, like: Like, *scale) -> Tree:
            require_key(key)
            if jnp.shape(message) != self._whole:
                got = jnp.shape(message)
                msg = f"Expected a message of shape {self._whole}, got {got}."
                raise ValueError(msg)

            def heard(given: tuple[Key, Message], number, leaves: Leaves) -> Leaves:
                key, message = given
                own = self._fitting(trees.size(leaves))
                message = message[tuple(slice(n) for n in own.zeros().shape)]
                key = jax.random.fold_in(key, number)
                return read(own)(key, message, leaves, *scale)

            cut = _Cut(like, self._parts, self._axis)
            rest = heard((key, message), self._parts, cut.rest) if cut.rest else []
            return cut.joined(cut.each(heard, (key, message), read=adds), rest)

        return read_like


class _Cut:
    """An update in parts: what can be cut, and the rest of it, leaf by leaf."""

    def __init__(self, tree: Like, parts: int, axis: str):
        """Cuts the leaves of `tree`; see `sharded` for the others."""
        if trees.is_length(tree):
            msg = f"Expected the pytree that is sketched in parts, got like={tree}."
            raise TypeError(msg)
        trees.require_floats(tree)
        leaves, self._treedef = jax.tree.flatten(tree)
        axes = [trees.cut(leaf.shape, parts) for leaf in leaves]
        both = list(zip(leaves, axes, strict=True))
        self._parts, self._axis, self._axes = parts, axis, axes
        self._leaves = [leaf for leaf, along in both if along is not None]
        self._along = [along for along in axes if along is not None]
        self.rest = [leaf for leaf, along in both if along is None]

    def added(self, of_part: Callable, given: Any) -> jax.Array:
        """Returns the sum over parts of `of_part(given, number, leaves)`."""
        if not self._leaves:
            return jnp.zeros(())
        if self._here():

            def mine(given, number, leaves):
                return lax.psum(of_part(given, number[0], leaves), self._axis)

            spread = jax.shard_map(
                mine,
                in_specs=(P(), P(self._axis), self._specs()),
                out_specs=P(),
                **self._manual(),
            )
            return spread(given, jnp.arange(self._parts), self._leaves)

        # Written down before they are added up: else XLA would round a product and the
        # sum together, and these numbers would not be those of several devices.
        said = lax.map(
            lambda number: of_part(given, number, self._slices(number)),
            jnp.arange(self._parts),
        )
        return functools.reduce(jnp.add, said)

    def each(self, of_part: Callable, given: Any, *, read: bool) -> Leaves:
        """Returns what `of_part(given, number, leaves)` makes of all parts, as leaves.

        Args:
          of_part: a function that returns leaves shaped as those that it is given.
          given: the first argument of it.
          read: whether it reads the leaves; if not, they are shapes.
        """
        if not self._leaves:
            return []
        shapes = [
            jax.ShapeDtypeStruct(_divided(leaf.shape, along, self._parts), leaf.dtype)
            for leaf, along in self._cut()
        ]
        if self._here():

            def mine(given, number, leaves):
                return of_part(given, number[0], leaves if read else shapes)

            leaves, specs = self._leaves if read else [], self._specs()
            spread = jax.shard_map(
                mine,
                in_specs=(P(), P(self._axis), specs if read else []),
                out_specs=specs,
                **self._manual(),
            )
            return spread(given, jnp.arange(self._parts), leaves)

        def one(number):
            return of_part(given, number, self._slices(number) if read else shapes)

        made = lax.map(one, jnp.arange(self._parts))
        return [
            jnp.moveaxis(leaf, 0, along).reshape(like.shape)
            for leaf, (like, along) in zip(made, self._cut(), strict=True)
        ]

    def joined(self, cut: Leaves, rest: Leaves) -> Tree:
        """Returns the update that has these leaves, `cut` and `rest`, in its order."""
        cut_, rest_ = iter(cut), iter(rest)
        leaves = [next(rest_ if along is None else cut_) for along in self._axes]
        return jax.tree.unflatten(self._treedef, leaves)

    def _here(self) -> bool:
        """Whether the devices around this program hold a part each."""
        mesh = jax.sharding.get_abstract_mesh()
        free = self._axis not in getattr(mesh, "manual_axes", ())
        return free and mesh.shape.get(self._axis) == self._parts

    def _manual(self) -> dict[str, Any]:
        return {"axis_names": {self._axis}}

    def _specs(self) -> list[P]:
        return [P(*[None] * along, self._axis) for along in self._along]

    def _slices(self, number) -> Leaves:
        """Returns the part of this `number` of every leaf that can be cut."""
        found = []
        for leaf, along in self._cut():
            size = leaf.shape[along] // self._parts
            found.append(lax.dynamic_slice_in_dim(leaf, number * size, size, along))
        return found

    def _cut(self) -> zip:
        return zip(self._leaves, self._along, strict=True)


def _divided(shape: tuple[int, ...], along: int, parts: int) -> tuple[int, ...]:
    """Returns the `shape` of one of the `parts`, cut `along` an axis."""
    return tuple(n // parts if axis == along else n for axis, n in enumerate(shape))
