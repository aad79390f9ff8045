"""A sketch of a model on several devices, each of which sketches its own part.

R is a row of parts, R = [R_1 ... R_m R_0], each with its own key: `R x = sum_j R_j
x_j`. `trees.cut` cuts arrays into parts; arrays that it cannot cut belong to R_0. Signs
of different parts are independent, so E[R^T R] = I as before. Devices only exchange one
sum of b numbers.

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
    """Sketches every part of an update separately, and adds up the messages.

    Inside a mesh with such an axis, of `parts` devices, each device sketches its own
    part; elsewhere parts are sketched one after the other. Both are the same map. A
    part shorter than a message is sent in as many numbers as it has.

    Args:
      op: any operator of fixed size, with random signs and new ones for each key.
      parts: the number of parts.
      axis: the name of the axis of the mesh.

    Returns:
      A Sketch of pytrees, whose messages are shaped as those of `op`.

    Raises:
      ValueError: for an operator with a fixed key, the same map for all parts.
    """
    validate.at_least_one(parts=parts)
    _require_new_maps(op)
    of_length = functools.cache(lambda d: op.resize(min(op.size(), d)))
    shape = op.zeros().shape

    def message_of(number, key: Key, leaves: Leaves) -> Message:
        """Returns the message of the part of this number, padded with zeros."""
        operator = of_length(trees.size(leaves))
        return _padded(operator.apply(jax.random.fold_in(key, number), leaves), shape)

    def apply(key: Key, tree: Tree) -> Message:
        require_key(key)
        cut = _cut(tree, parts, axis)
        rest = message_of(parts, key, cut.rest) if cut.rest else 0
        return cut.sum(message_of, key) + rest

    def reading(read: Callable) -> Callable:
        """Returns `read(operator)`, a function of leaves, for trees."""

        def leaves_of(like: Leaves, number, key: Key, message: Message) -> Leaves:
            operator = of_length(trees.size(like))
            message = message[tuple(slice(n) for n in operator.zeros().shape)]
            return read(operator)(jax.random.fold_in(key, number), message, like)

        def read_like(key: Key, message: Message, like: Like) -> Tree:
            _require(key, message, shape)
            cut = _cut(like, parts, axis)
            rest = leaves_of(cut.rest, parts, key, message) if cut.rest else []
            return cut.joined(cut.map(leaves_of, key, message), rest)

        return read_like

    transpose = reading(lambda part: part.transpose)
    same = op.estimate is op.transpose
    return Sketch(
        apply=apply,
        transpose=transpose,
        estimate=transpose if same else reading(lambda part: part.estimate),
        zeros=lambda like=None: op.zeros(),
        size=lambda like=None: op.size(),
        resize=lambda numbers: sharded(op.resize(numbers), parts, axis),
    )


def _require_new_maps(op: Sketch) -> None:
    if op.fixed_key:
        msg = "Expected an operator with a new map for each part, got one with a fixed "
        raise ValueError(msg + "key: use fixed_key(sharded(op, parts), key).")


def _padded(message: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    sizes = zip(shape, message.shape, strict=True)
    return jnp.pad(message, [(0, most - size) for most, size in sizes])


def _require(key: Key, message: Message, shape: tuple[int, ...]) -> None:
    require_key(key)
    if jnp.shape(message) != shape:
        msg = f"Expected a message of shape {shape}, got {jnp.shape(message)}."
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
    """An update in parts: leaves that are cut along an axis each, and the rest."""

    cut: list[tuple[jax.Array, int]]
    rest: Leaves
    axes: list[int | None]
    treedef: Any
    parts: int
    axis: str

    def sum(self, of_part: Callable, key: Key) -> jax.Array:
        """Returns the sum over all parts of `of_part(number, key, leaves)`."""
        if not self.cut:
            return jnp.zeros(())
        if self._is_on_devices():
            leaves = [leaf for leaf, _ in self.cut]
            specs = P(), self._specs()

            def summed(*part):
                return lax.psum(of_part(*part), self.axis)

            return self._on_devices(summed, specs, P())(key, leaves)
        # Stored before they are added up: otherwise XLA would round a product and the
        # sum together, and these numbers would not be those of several devices.
        return functools.reduce(
            jnp.add, self._in_turn(lambda n: of_part(n, key, self._slices(n)))
        )

    def map(self, of_part: Callable, *arguments: Any) -> Leaves:
        """Returns the whole leaves of `of_part(shapes, number, *arguments)`.

        That returns leaves of these shapes, which are those of a part.
        """
        if not self.cut:
            return []
        parts = self.parts
        shapes = [
            jax.ShapeDtypeStruct(
                (*leaf.shape[:at], leaf.shape[at] // parts, *leaf.shape[at + 1 :]),
                leaf.dtype,
            )
            for leaf, at in self.cut
        ]
        of_number = functools.partial(of_part, shapes)
        if self._is_on_devices():
            specs = (P(),) * len(arguments)
            return self._on_devices(of_number, specs, self._specs())(*arguments)
        stacked = self._in_turn(lambda number: of_number(number, *arguments))
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

    def _on_devices(self, of_part: Callable, in_specs: tuple, out_specs) -> Callable:
        """Returns `of_part(number, ...)` on the device of each part."""
        sharded_map = jax.shard_map(
            lambda number, *arguments: of_part(number[0], *arguments),
            in_specs=(P(self.axis), *in_specs),
            out_specs=out_specs,
            axis_names={self.axis},
        )
        return functools.partial(sharded_map, jnp.arange(self.parts))

    def _in_turn(self, of_number: Callable) -> Any:
        return lax.map(of_number, jnp.arange(self.parts))

    def _specs(self) -> list[P]:
        return [P(*[None] * along, self.axis) for _, along in self.cut]

    def _slices(self, number) -> Leaves:
        """Returns the part of this `number` of every leaf that is cut."""
        sizes = [leaf.shape[along] // self.parts for leaf, along in self.cut]
        return [
            lax.dynamic_slice_in_dim(leaf, number * size, size, along)
            for (leaf, along), size in zip(self.cut, sizes, strict=True)
        ]
