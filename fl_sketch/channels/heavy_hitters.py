"""Channels with a second exchange, for exact values of heavy coordinates.

First exchange: the mean sketch. Whoever has it can find its heavy coordinates, as
FedSKETCH's HEAVYMIX does. The server sends clients these, since that is shorter than
the mean sketch. Second exchange: the mean of the exact values there.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.core import trees, validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import (
    Channel,
    Delivery,
    Field,
    Key,
    Linear,
    Message,
    ServerReply,
    Sketch,
)
from fl_sketch.sketch import FILLS, heavy_coordinates

VALUES = ("exact", "fresh", "estimated")


def heavy_values(op: Sketch, k: int, *, fill: str = "random") -> Channel:
    """Sends the exact values of k heavy coordinates; the estimate is zero elsewhere.

    Under `error_feedback` this is SketchedSGD.

    Args:
      op: a count sketch with rows.
      k: the number of values.
      fill: the choice of those that are not heavy, see `sketch.heavy_coordinates`.

    Reference: Ivkin et al. (2019), Algorithm 2.
    """
    validate.sketch_operator(sketch=op)
    validate.at_least_one(k=k)
    validate.one_of(FILLS, fill=fill)

    def talk(update, memory, keys, round):
        vector, key = trees.ravel(update).astype(jnp.float32), keys.shared
        mean = yield Linear(lambda x: op.apply(key, x), vector)
        index = heavy_coordinates(op, key, mean, vector.size, k, fill=fill)
        index = yield ServerReply(index, _indices(k, vector.size))
        values = yield Linear(lambda x: x[index], vector)
        estimate = _placed(values, index, vector.size)
        own = _placed(round.counted(vector[index]), index, vector.size)
        unravel = trees.unraveler(update)
        return Delivery(unravel(estimate), unravel(own)), memory

    return Channel(talk)


def heaprix(
    op: Sketch, k: int, *, values: str = "exact", fill: str = "random"
) -> Channel:
    """HEAPRIX: k heavy coordinates by value, and everything else from a sketch.

    With shared hashes the sketch of the rest, S(x) - S(HEAVYMIX[S(x)]), follows from
    the values, so the second exchange carries nothing else. The estimate is then
    biased, against the paper's Corollary 1: if a coordinate is not among the heavy
    ones, its collisions did not make it look larger. The lemma on induced compressors
    behind the corollary needs the second compressor to be independent of the first, as
    `values="fresh"` makes it.

    Args:
      op: a count sketch with rows.
      k: the number m of HEAVYMIX: of values.
      values: "exact"; "fresh": exact, with a sketch of the rest by fresh hashes; or
        "estimated": from the sketch, without a second exchange.
      fill: the choice of those that are not heavy, see `sketch.heavy_coordinates`.

    Reference: Haddadpour et al., Algorithms 3 and 4.
    """
    validate.sketch_operator(sketch=op)
    validate.at_least_one(k=k)
    validate.one_of(VALUES, values=values)
    validate.one_of(FILLS, fill=fill)
    find = functools.partial(heavy_coordinates, op, m=k, fill=fill)

    def talk(update, memory, keys, round):
        vector = trees.ravel(update).astype(jnp.float32)
        d, counted = vector.size, round.counted
        code = _Code(op, values, keys.shared, d)
        mean, own = (yield Linear(code.first, vector)), counted(code.first(vector))
        index, own_index = (find(keys.shared, first, d) for first in (mean, own))
        second = own_second = None
        if values != "estimated":
            index = yield ServerReply(index, _indices(k, d))
            second = yield Linear(functools.partial(code.second, index), vector)
            own_second = counted(code.second(own_index, vector))
        unravel = trees.unraveler(update)
        estimate = unravel(code.decoded(mean, index, second))
        own = unravel(code.decoded(own, own_index, own_second))
        return Delivery(estimate, own), memory

    return Channel(talk)


class _Code(NamedTuple):
    """HEAPRIX's two messages of a vector of length d, and their decoding."""

    op: Sketch
    values: str
    key: Key
    d: int

    @property
    def rest_key(self) -> Key:
        return apart(self.key, Purpose.REST)

    def first(self, x: jax.Array) -> Message:
        return self.op.apply(self.key, x)

    def second(self, index: jax.Array, x: jax.Array) -> Message:
        if self.values == "exact":
            return x[index]
        rest = x.at[index].set(0.0, unique_indices=True)
        return x[index], self.op.apply(self.rest_key, rest)

    def decoded(self, first: Message, index: jax.Array, second: Message) -> jax.Array:
        estimate, d = self.op.estimate, self.d
        if self.values == "fresh":
            heavy, rest = second
            rest = estimate(self.rest_key, rest, d)  # zero at the heavy places
            return rest.at[index].set(heavy, unique_indices=True)
        if self.values == "estimated":
            second = estimate(self.key, first, d)[index]
        heavy = _placed(second, index, d)
        left = first - self.op.apply(self.key, heavy)
        return heavy + estimate(self.key, left, d)


def columns(op: Sketch) -> int:
    """Returns m, the number of columns of a sketch of shape (rows, columns).

    Raises:
      ValueError: for any other sketch.
    """
    validate.sketch_operator(sketch=op)
    try:
        shape = jax.eval_shape(op.zeros).shape
    except (AttributeError, TypeError, ValueError):  # it depends on the update
        shape = None
    if shape is None or len(shape) != 2:
        msg = (
            "Expected a count sketch of the whole model, for its heavy coordinates, "
            f"got one with messages of {f'shape {shape}' if shape else 'its size'}."
        )
        raise ValueError(msg)
    return shape[1]


def _placed(values: jax.Array, index: jax.Array, d: int) -> jax.Array:
    return jnp.zeros(d).at[index].set(values, unique_indices=True)


def _indices(k: int, d: int) -> tuple[Field, ...]:
    return (Field(k, (d - 1).bit_length(), "uint"),)
