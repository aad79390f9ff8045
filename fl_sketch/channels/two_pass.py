"""Channels with a second exchange: what the first one showed to be worth sending."""

import jax.numpy as jnp

from fl_sketch import trees, validate
from fl_sketch.channels.single import no_memory
from fl_sketch.protocols import Channel, Delivery, Sketch
from fl_sketch.sketch import heavy_coordinates
from fl_sketch.wire import FLOAT_BITS


def heavy_values(op: Sketch, k: int, *, rest: bool) -> Channel:
    """Sketches, agrees on k heavy coordinates, and sends their exact values.

    First exchange: the mean sketch, which comes back to the clients. All can then
    find the same k heavy coordinates; the second exchange is the mean of the exact
    values there.

    Args:
      op: a count sketch with rows.
      k: how many exact values.
      rest: whether the estimate adds what the sketch says of everything else
        (HEAPRIX), or not (SketchedSGD).

    References: Haddadpour et al., Algorithm 4; Ivkin et al. (2019), Algorithm 2.
    """
    validate.at_least_one(k=k)

    def mean(update, memory, keys, link_mean):
        vector = trees.ravel(update).astype(jnp.float32)
        d, key = vector.size, keys.shared

        def fill(message, index, values):
            heavy = jnp.zeros(d).at[index].set(values, unique_indices=True)
            if not rest:
                return heavy
            return heavy + op.estimate(key, message - op.apply(key, heavy), d)

        message = op.apply(key, vector)
        average = link_mean(message)
        index = heavy_coordinates(op, key, average, d, k)
        estimate = fill(average, index, link_mean(vector[index]))
        own_index = heavy_coordinates(op, key, message, d, k)
        own = fill(message, own_index, vector[own_index])
        unravel = trees.unraveler(update)
        bits, heard = FLOAT_BITS * (op.size() + k), FLOAT_BITS * op.size()
        return Delivery(unravel(estimate), unravel(own), bits, heard), memory

    return Channel(no_memory, mean)
