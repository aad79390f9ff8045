"""Channels with a second exchange: what the first one showed to be worth sending.

First exchange: the mean sketch. Whoever has it can find its heavy coordinates, as
FedSKETCH's HEAVYMIX does; clients are told them, since that is shorter than the mean
sketch. Second exchange: the mean of the exact values there.
"""

import functools

import jax
import jax.numpy as jnp

from fl_sketch import trees, validate
from fl_sketch.keys import Purpose, apart
from fl_sketch.protocols import Channel, Delivery, Field, Linear, Sketch, Told
from fl_sketch.sketch import heavy_coordinates

VALUES = ("exact", "fresh", "estimated")


def heavy_values(op: Sketch, k: int) -> Channel:
    """Sends the exact values of k heavy coordinates; all else is as good as zero.

    Under `error_feedback`, SketchedSGD.

    Args:
      op: a count sketch with rows.
      k: how many values.

    Reference: Ivkin et al. (2019), Algorithm 2.
    """
    validate.at_least_one(k=k)

    def talk(update, memory, keys, round):
        vector, key = trees.ravel(update).astype(jnp.float32), keys.shared
        average = yield Linear(lambda x: op.apply(key, x), vector)
        index = heavy_coordinates(op, key, average, vector.size, k)
        index = yield Told(index, _indices(k, vector.size))
        values = yield Linear(lambda x: x[index], vector)
        estimate = _placed(values, index, vector.size)
        own = _placed(round.counted(vector[index]), index, vector.size)
        unravel = trees.unraveler(update)
        return Delivery(unravel(estimate), unravel(own)), memory

    return Channel(talk)


def heaprix(op: Sketch, k: int, *, values: str = "exact") -> Channel:
    """HEAPRIX: k heavy coordinates by value, and everything else from a sketch.

    With shared hashes the sketch of the rest, S(x) - S(HEAVYMIX[S(x)]), is known to
    everyone who knows the values, so these are all that the second exchange carries.
    The estimate is then biased, against the paper's Corollary 1: a coordinate that
    is not among the heavy ones is one that its collisions did not make look larger.
    The lemma on induced compressors that the corollary rests on needs the second
    compressor to be independent of the first, which `values="fresh"` gives.

    Args:
      op: a count sketch with rows.
      k: m of HEAVYMIX, how many values.
      values: "exact"; "fresh": exact, and with them a sketch of the rest with hashes
        of its own; or "estimated": what the sketch says, without a second exchange.

    Reference: Haddadpour et al., Algorithms 3 and 4.
    """
    validate.at_least_one(k=k)
    validate.one_of(VALUES, values=values)

    def talk(update, memory, keys, round):
        vector = trees.ravel(update).astype(jnp.float32)
        d, key, counted = vector.size, keys.shared, round.counted
        other = apart(key, Purpose.REST)

        def sketch(x):
            return op.apply(key, x)

        def answer(index, x):
            """Returns a client's second message, linear in its update."""
            if values == "exact":
                return x[index]
            rest = x.at[index].set(0.0, unique_indices=True)
            return x[index], op.apply(other, rest)

        def decoded(message, index, second):
            if values == "estimated":
                heavy = _placed(op.estimate(key, message, d)[index], index, d)
            elif values == "fresh":
                found, rest = second
                rest = op.estimate(other, rest, d)  # zero at the heavy places
                return rest.at[index].set(found, unique_indices=True)
            else:
                heavy = _placed(second, index, d)
            return heavy + op.estimate(key, message - op.apply(key, heavy), d)

        heard, own = (yield Linear(sketch, vector)), counted(sketch(vector))
        index = heavy_coordinates(op, key, heard, d, k)
        own_index = heavy_coordinates(op, key, own, d, k)
        second = own_second = None
        if values != "estimated":
            index = yield Told(index, _indices(k, d))
            second = yield Linear(functools.partial(answer, index), vector)
            own_second = counted(answer(own_index, vector))
        unravel = trees.unraveler(update)
        estimate = unravel(decoded(heard, index, second))
        own = unravel(decoded(own, own_index, own_second))
        return Delivery(estimate, own), memory

    return Channel(talk)


def columns(op: Sketch) -> int:
    """Returns m, how many columns a sketch of shape (rows, columns) has.

    Raises:
      ValueError: for any other sketch.
    """
    try:
        shape = jax.eval_shape(op.zeros).shape
    except (AttributeError, TypeError, ValueError):  # it depends on the update
        shape = None
    if shape is None or len(shape) != 2:
        msg = (
            "Expected a count sketch of the whole model, for its heavy coordinates, "
            f"got one with messages of shape {shape}."
        )
        raise ValueError(msg)
    return shape[1]


def _placed(values: jax.Array, index: jax.Array, d: int) -> jax.Array:
    return jnp.zeros(d).at[index].set(values, unique_indices=True)


def _indices(k: int, d: int) -> tuple[Field, ...]:
    return (Field(k, (d - 1).bit_length(), "uint"),)
