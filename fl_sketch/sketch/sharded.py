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

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from fl_sketch.core import trees, validate
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Like, Message, Sketch, Tree


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
    """
    validate.at_least_one(parts=parts)
    if op.fixed_key:
        msg = "All parts would have one map: use fixed_key(sharded(op, parts), key)."
        raise ValueError(msg)
    of_length = functools.cache(lambda d: op.resize(min(op.size(), d)))
    shape = op.zeros().shape

    def message_of(number, key: Key, leaves: list) -> Message:
        """Returns the message of the part of this number, padded with zeros."""
        operator = of_length(trees.size(leaves))
        message = operator.apply(jax.random.fold_in(key, number), leaves)
        sizes = zip(shape, message.shape, strict=True)
        return jnp.pad(message, [(0, most - size) for most, size in sizes])

    def split(tree: Like):
        """Returns (leaf, its axis) of the leaves that are cut, and the others."""
        if trees.is_length(tree):
            msg = f"A sketch in parts needs a pytree, not like={tree}."
            raise TypeError(msg)
        trees.require_floats(tree)
        leaves = jax.tree.leaves(tree)
        pairs = [(leaf, trees.cut(leaf.shape, parts)) for leaf in leaves]
        cut = [(leaf, along) for leaf, along in pairs if along is not None]
        return cut, [leaf for leaf, along in pairs if along is None]

    def is_on_devices() -> bool:
        """Whether the devices around this program have a part each."""
        mesh = jax.sharding.get_abstract_mesh()
        free = axis not in getattr(mesh, "manual_axes", ())
        return free and mesh.shape.get(axis) == parts

    def on_devices(of_part: Callable, in_specs: tuple, out_specs) -> Callable:
        """Returns `of_part(number, ...)` on the device of each part."""
        mapped = jax.shard_map(
            lambda number, *arguments: of_part(number[0], *arguments),
            in_specs=(P(axis), *in_specs),
            out_specs=out_specs,
            axis_names={axis},
        )
        return functools.partial(mapped, jnp.arange(parts))

    def specs(cut: list) -> list[P]:
        return [P(*[None] * along, axis) for _, along in cut]

    def sum_over_parts(key: Key, cut: list) -> Message:
        if is_on_devices():

            def summed(*part):
                return lax.psum(message_of(*part), axis)

            leaves = [leaf for leaf, _ in cut]
            return on_devices(summed, (P(), specs(cut)), P())(key, leaves)

        def of_number(number):
            sizes = [leaf.shape[along] // parts for leaf, along in cut]
            part = [
                lax.dynamic_slice_in_dim(leaf, number * size, size, along)
                for (leaf, along), size in zip(cut, sizes, strict=True)
            ]
            return message_of(number, key, part)

        # Stored before they are added up: otherwise XLA would round a product and the
        # sum together, and these numbers would not be those of several devices.
        return functools.reduce(jnp.add, lax.map(of_number, jnp.arange(parts)))

    def apply(key: Key, tree: Tree) -> Message:
        require_key(key)
        cut, rest = split(tree)
        of_rest = message_of(parts, key, rest) if rest else 0
        return (sum_over_parts(key, cut) if cut else jnp.zeros(())) + of_rest

    def reading(read: Callable) -> Callable:
        """Returns `read(operator)`, a function of leaves, for trees."""

        def leaves_of(like: list, number, key: Key, message: Message) -> list:
            operator = of_length(trees.size(like))
            message = message[tuple(slice(n) for n in operator.zeros().shape)]
            return read(operator)(jax.random.fold_in(key, number), message, like)

        def read_parts(cut: list, key: Key, message: Message) -> list:
            shapes = []
            for leaf, at in cut:
                part = (
                    *leaf.shape[:at],
                    leaf.shape[at] // parts,
                    *leaf.shape[at + 1 :],
                )
                shapes.append(jax.ShapeDtypeStruct(part, leaf.dtype))
            of_number = functools.partial(leaves_of, shapes)
            if is_on_devices():
                return on_devices(of_number, (P(), P()), specs(cut))(key, message)
            stacked = lax.map(lambda n: of_number(n, key, message), jnp.arange(parts))
            return [
                jnp.moveaxis(leaf, 0, along).reshape(like.shape)
                for leaf, (like, along) in zip(stacked, cut, strict=True)
            ]

        def read_like(key: Key, message: Message, like: Like) -> Tree:
            require_key(key)
            if jnp.shape(message) != shape:
                got = jnp.shape(message)
                msg = f"A message has shape {shape} here, not {got}."
                raise ValueError(msg)
            cut, rest = split(like)
            of_cut = iter(read_parts(cut, key, message) if cut else [])
            of_rest = iter(leaves_of(rest, parts, key, message) if rest else [])
            leaves, treedef = jax.tree.flatten(like)
            axes = [trees.cut(leaf.shape, parts) for leaf in leaves]
            values = [next(of_rest if along is None else of_cut) for along in axes]
            return jax.tree.unflatten(treedef, values)

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
