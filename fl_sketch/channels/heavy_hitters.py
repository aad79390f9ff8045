"""Channels with a second exchange, for exact values of heavy coordinates.

First exchange: the mean sketch. Whoever has it can find its heavy coordinates, as
FedSKETCH's HEAVYMIX does. The server sends clients these, since that is shorter than
the mean sketch. Second exchange: the mean of the exact values there.
"""

import functools

import jax
import jax.numpy as jnp

from fl_sketch.core import trees, validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import (
    Channel,
    Delivery,
    Field,
    Linear,
    ServerReply,
    Sketch,
)
from fl_sketch.sketch import FILLS, heavy_coordinates

VALUES = ("exact", "fresh")


def heavy_values(op: Sketch, k: int, *, fill: str = "random") -> Channel:
    """Sends the exact values of k heavy coordinates; the estimate is zero elsewhere.

    Under `error_feedback` this is SketchedSGD.

    Args:
      op: a count sketch with rows.
      k: the number of values.
      fill: the choice of those that are not heavy, see `sketch.heavy_coordinates`.

    Reference: Ivkin et al. (2019), Algorithm 2.
    """
    _require(k, fill)

    def protocol(update, memory, keys, round):
        vector, key = trees.ravel(update).astype(jnp.float32), keys.shared
        mean = yield Linear(lambda x: op.apply(key, x), vector)
        index = heavy_coordinates(op, key, mean, vector.size, k, fill=fill)
        index = yield ServerReply(index, _indices(k, vector.size))
        values = yield Linear(lambda x: x[index], vector)
        estimate = _placed(values, index, vector.size)
        own = _placed(round.counted(vector[index]), index, vector.size)
        unravel = trees.unraveler(update)
        return Delivery(unravel(estimate), unravel(own)), memory

    return Channel(protocol)


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
      values: "exact"; or "fresh": exact, with a sketch of the rest by fresh hashes.
      fill: the choice of those that are not heavy, see `sketch.heavy_coordinates`.

    Reference: Haddadpour et al., Algorithms 3 and 4.
    """
    _require(k, fill)
    validate.one_of(VALUES, values=values)
    find = functools.partial(heavy_coordinates, op, m=k, fill=fill)

    def protocol(update, memory, keys, round):
        vector, key = trees.ravel(update).astype(jnp.float32), keys.shared
        d, rest_key = vector.size, apart(key, Purpose.REST)

        def first(x):
            return op.apply(key, x)

        def second(index, x):
            if values == "exact":
                return x[index]
            rest = x.at[index].set(0.0, unique_indices=True)
            return x[index], op.apply(rest_key, rest)

        def decoded(sketched, index, heavy):
            if values == "fresh":
                heavy, rest = heavy
                rest = op.estimate(rest_key, rest, d)  # zero at the heavy places
                return rest.at[index].set(heavy, unique_indices=True)
            placed = _placed(heavy, index, d)
            return placed + op.estimate(key, sketched - first(placed), d)

        mean, own = (yield Linear(first, vector)), round.counted(first(vector))
        index, own_index = (find(key, sketched, d) for sketched in (mean, own))
        index = yield ServerReply(index, _indices(k, d))
        heavy = yield Linear(functools.partial(second, index), vector)
        own_heavy = round.counted(second(own_index, vector))
        unravel = trees.unraveler(update)
        estimate = unravel(decoded(mean, index, heavy))
        return Delivery(estimate, unravel(decoded(own, own_index, own_heavy))), memory

    return Channel(protocol)


def columns(op: Sketch) -> int:
    """Returns m, the number of columns of a sketch of shape (rows, columns)."""
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


def _require(k: int, fill: str) -> None:
    validate.at_least_one(k=k)
    validate.one_of(FILLS, fill=fill)


def _placed(values: jax.Array, index: jax.Array, d: int) -> jax.Array:
    return jnp.zeros(d).at[index].set(values, unique_indices=True)


def _indices(k: int, d: int) -> tuple[Field, ...]:
    return (Field(k, (d - 1).bit_length(), "uint"),)
