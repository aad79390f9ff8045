"""Channels with a second exchange: what the first one showed to be worth sending.

First exchange: the mean sketch. Whoever has it can find its heavy coordinates, as
FedSKETCH's HEAVYMIX does; clients are told them, since that is shorter than the mean
sketch. Second exchange: the mean of the exact values there.
"""

import functools

import jax
import jax.numpy as jnp

from fl_sketch import trees, validate
from fl_sketch.channels.single import no_memory
from fl_sketch.protocols import Channel, Delivery, Sketch
from fl_sketch.sketch import heavy_coordinates
from fl_sketch.wire import FLOAT_BITS

VALUES = ("exact", "fresh", "estimated")
REST = 0x4E57  # sets the key of fresh hashes apart


def heavy_values(op: Sketch, k: int) -> Channel:
    """Sends the exact values of k heavy coordinates; all else is as good as zero.

    Under `error_feedback`, SketchedSGD.

    Args:
      op: a count sketch with rows.
      k: how many values.

    Reference: Ivkin et al. (2019), Algorithm 2.
    """
    validate.at_least_one(k=k)

    def mean(update, memory, keys, link):
        vector, key = trees.ravel(update).astype(jnp.float32), keys.shared
        average = link.mean_of(lambda x: op.apply(key, x), vector)
        index = heavy_coordinates(op, key, average, vector.size, k)
        values = link.mean_of(lambda x: x[index], vector)
        estimate = _placed(values, index, vector.size)
        own = _placed(link.counted(vector[index]), index, vector.size)
        unravel = trees.unraveler(update)
        bits, heard = FLOAT_BITS * (op.size() + k), k * _index_bits(vector.size)
        return Delivery(unravel(estimate), unravel(own), bits, heard), memory

    return Channel(no_memory, mean)


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

    def mean(update, memory, keys, link):
        vector = trees.ravel(update).astype(jnp.float32)
        d, key = vector.size, keys.shared
        other = jax.random.fold_in(key, REST)

        def answer(index, x):
            """Returns a client's second message, linear in its update."""
            if values == "exact":
                return x[index]
            rest = x.at[index].set(0.0, unique_indices=True)
            return x[index], op.apply(other, rest)

        def decoded(message, ask):
            index = heavy_coordinates(op, key, message, d, k)
            if values == "estimated":
                heavy = _placed(op.estimate(key, message, d)[index], index, d)
            elif values == "fresh":
                found, rest = ask(index)
                rest = op.estimate(other, rest, d)  # zero at the heavy places
                return rest.at[index].set(found, unique_indices=True)
            else:
                heavy = _placed(ask(index), index, d)
            return heavy + op.estimate(key, message - op.apply(key, heavy), d)

        def sketch(x):
            return op.apply(key, x)

        def ask_all(index):
            return link.mean_of(functools.partial(answer, index), vector)

        estimate = decoded(link.mean_of(sketch, vector), ask_all)
        own = decoded(
            link.counted(sketch(vector)),
            lambda index: link.counted(answer(index, vector)),
        )
        unravel = trees.unraveler(update)
        sent = {"exact": op.size() + k, "fresh": 2 * op.size() + k}
        bits = FLOAT_BITS * sent.get(values, op.size())
        heard = k * _index_bits(d) if values in sent else 0
        return Delivery(unravel(estimate), unravel(own), bits, heard), memory

    return Channel(no_memory, mean)


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


def _index_bits(d: int) -> int:
    return (d - 1).bit_length()
