"""A sketch of a model that lies on several devices: each sketches its own part.

The columns of R are those of its parts side by side, R = [R_1 ... R_m R_0], each with
its own key: `R x = sum_j R_j x_j`. `trees.cut` cuts arrays into parts; arrays that it
cannot cut belong to R_0. Signs of different parts are independent, so E[R^T R] = I as
before. Only one sum of b numbers crosses between the devices.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import sketch
>>> op, update = sketch.sharded(sketch.count_sketch(50), 4), {"w": jnp.ones((20, 10))}
>>> op.apply(jax.random.key(0), update).shape
(1, 50)
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from fl_sketch.core import trees, validate
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Like, Message, Sketch, Tree

Leaves = list[jax.Array]


def sharded(op: Sketch, parts: int, axis: str = trees.MODEL) -> Sketch:
    """Sketches every part of an update by itself, and adds up the messages.

    Inside a mesh with such an axis, of `parts` devices, each device sketches its own
    part; elsewhere parts are sketched one after the other. Both are the same map. A
    part shorter than a message is sent in as many numbers as it has.

    Args:
      op: any operator of fixed size, with random signs.
      parts: the number of parts.
      axis: the name of the axis of the mesh.

    Returns:
      A Sketch of pytrees, whose messages are shaped as those of `op`.
    """
    validate.at_least_one(parts=parts)
    of_length = functools.cache(lambda d: op.resize(min(op.size(), d)))
    part_op = _PartOperator(of_length, op.zeros().shape)

    def apply(key: Key, tree: Tree) -> Message:
        require_key(key)
        cut = _cut(tree, parts, axis)
        rest = part_op.message(key, parts, cut.rest) if cut.rest else 0
        return cut.sum(part_op.message, key) + rest

    def reading(read: Callable, *, reads_leaves: bool = False) -> Callable:
        """Returns `read(operator)`, a function of leaves, for trees."""

        def read_like(key: Key, message: Message, like: Like, *scale) -> Tree:
            require_key(key)
            part_op.require_message(message)
            leaves_of_part = functools.partial(part_op.leaves, read, scale)
            cut, keyed = _cut(like, parts, axis), (key, message)
            rest = leaves_of_part(keyed, parts, cut.rest) if cut.rest else []
            return cut.joined(cut.map(leaves_of_part, keyed, reads_leaves), rest)

        return read_like

    return Sketch(
        apply=apply,
        transpose=reading(lambda part: part.transpose),
        add_transpose=reading(lambda part: part.add_transpose, reads_leaves=True),
        estimate=reading(lambda part: part.estimate),
        zeros=lambda like=None: op.zeros(),
        size=lambda like=None: op.size(),
        resize=lambda numbers: sharded(op.resize(numbers), parts, axis),
        fixed_key=op.fixed_key,
    )


class _PartOperator(NamedTuple):
    """An operator for parts, by their lengths, with messages of one shape."""

    of_length: Callable[[int], Sketch]
    shape: tuple[int, ...]

    def message(self, key: Key, number, leaves: Leaves) -> Message:
        """Returns the message of the part of this number, padded with zeros."""
        operator = self.of_length(trees.size(leaves))
        message = operator.apply(jax.random.fold_in(key, number), leaves)
        sizes = zip(self.shape, message.shape, strict=True)
        return jnp.pad(message, [(0, most - size) for most, size in sizes])

    def leaves(self, read, scale, keyed, number, leaves: Leaves) -> Leaves:
        """Returns what `read(operator)` makes of the message for a part."""
        (key, message), operator = keyed, self.of_length(trees.size(leaves))
        message = message[tuple(slice(n) for n in operator.zeros().shape)]
        return read(operator)(jax.random.fold_in(key, number), message, leaves, *scale)

    def require_message(self, message: Message) -> None:
        if jnp.shape(message) != self.shape:
            got = jnp.shape(message)
            msg = f"Expected a message of shape {self.shape}, got {got}."
            raise ValueError(msg)


def _cut(tree: Like, parts: int, axis: str) -> "_Cut":
    """Returns an update in parts."""
    if trees.is_length(tree):
        msg = f"Expected the pytree that is sketched in parts, got like={tree}."
        raise TypeError(msg)
    trees.require_floats(tree)
    leaves, treedef = jax.tree.flatten(tree)
    axes = [trees.cut(leaf.shape, parts) for leaf in leaves]
    pairs = list(zip(leaves, axes, strict=True))
    cut = [(leaf, along) for leaf, along in pairs if along is not None]
    rest = [leaf for leaf, along in pairs if along is None]
    return _Cut(cut, rest, axes, treedef, parts, axis)


class _Cut(NamedTuple):
    """An update in parts: leaves that are cut along an axis each, and the rest.

    Functions of a part are `of_part(arguments, number, leaves)`.
    """

    cut: list[tuple[jax.Array, int]]
    rest: Leaves
    axes: list[int | None]
    treedef: Any
    parts: int
    axis: str

    def sum(self, of_part: Callable, arguments: Any) -> jax.Array:
        """Returns the sum of a function over all parts."""
        if not self.cut:
            return jnp.zeros(())
        if self._is_on_devices():

            def summed(*part):
                return lax.psum(of_part(*part), self.axis)

            return self._on_devices(summed, arguments, P())
        # Written down before they are added up: else XLA would round a product and the
        # sum together, and these numbers would not be those of several devices.
        return functools.reduce(jnp.add, self._in_turn(of_part, arguments))

    def map(self, of_part: Callable, arguments: Any, reads_leaves: bool) -> Leaves:
        """Returns the whole leaves that a function makes of all parts.

        It returns leaves shaped as those that it is given, which are only shapes unless
        it reads them.
        """
        if not self.cut:
            return []
        shapes = [
            jax.ShapeDtypeStruct(_divided(leaf.shape, along, self.parts), leaf.dtype)
            for leaf, along in self.cut
        ]

        def made(arguments, number, leaves):
            return of_part(arguments, number, leaves if reads_leaves else shapes)

        if self._is_on_devices():
            return self._on_devices(made, arguments, self._specs(), reads_leaves)
        stacked = self._in_turn(made, arguments, reads_leaves)
        return [
            jnp.moveaxis(leaf, 0, along).reshape(like.shape)
            for leaf, (like, along) in zip(stacked, self.cut, strict=True)
        ]

    def joined(self, cut: Leaves, rest: Leaves) -> Tree:
        """Returns the update that has these leaves, in its own order."""
        cut_leaves, rest_leaves = iter(cut), iter(rest)
        leaves = [next(rest_leaves if a is None else cut_leaves) for a in self.axes]
        return jax.tree.unflatten(self.treedef, leaves)

    def _is_on_devices(self) -> bool:
        """Whether the devices around this program have a part each."""
        mesh = jax.sharding.get_abstract_mesh()
        free = self.axis not in getattr(mesh, "manual_axes", ())
        return free and mesh.shape.get(self.axis) == self.parts

    def _on_devices(self, of_part, arguments, out_specs, reads_leaves=True):
        leaves, specs = [leaf for leaf, _ in self.cut], self._specs()
        sharded_map = jax.shard_map(
            lambda arguments, number, leaves: of_part(arguments, number[0], leaves),
            in_specs=(P(), P(self.axis), specs if reads_leaves else []),
            out_specs=out_specs,
            axis_names={self.axis},
        )
        numbers = jnp.arange(self.parts)
        return sharded_map(arguments, numbers, leaves if reads_leaves else [])

    def _in_turn(self, of_part, arguments, reads_leaves=True):
        def one_part(number):
            slices = self._slices(number) if reads_leaves else []
            return of_part(arguments, number, slices)

        return lax.map(one_part, jnp.arange(self.parts))

    def _specs(self) -> list[P]:
        return [P(*[None] * along, self.axis) for _, along in self.cut]

    def _slices(self, number) -> Leaves:
        """Returns the part of this `number` of every leaf that is cut."""
        sizes = [leaf.shape[along] // self.parts for leaf, along in self.cut]
        return [
            lax.dynamic_slice_in_dim(leaf, number * size, size, along)
            for (leaf, along), size in zip(self.cut, sizes, strict=True)
        ]


def _divided(shape: tuple[int, ...], along: int, parts: int) -> tuple[int, ...]:
    """Returns the `shape` of one of the `parts`, cut `along` an axis."""
    return tuple(n // parts if axis == along else n for axis, n in enumerate(shape))
