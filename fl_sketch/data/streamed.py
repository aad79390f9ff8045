"""Clients' batches of data that stay on the host.

This is for data that do not fit on a device, or that are files mapped into memory. A
device has one number per client, from which it draws the places of a cohort's examples
with the keys and the function of `batches.batches`. The host gathers these examples and
sends every device the batches of its clients. The batches are those of a resident data
set, to the bit.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core.protocols import Key
from fl_sketch.data import batches
from fl_sketch.data.partition import Partition


class OnHost(NamedTuple):
    """A data set and its partition as numpy arrays, with the fields of `Resident`."""

    examples: Any
    indices: np.ndarray
    starts: np.ndarray


def on_host(examples: Any, partition: Partition) -> OnHost:
    """Returns the data without copying them; raises as `batches.resident` does."""
    batches.check(examples, partition)
    indices = partition.indices.astype(np.int32, copy=False)
    return OnHost(examples, indices, partition.starts.astype(np.int32))


def places(starts: jax.Array, keys: Key, cohort: jax.Array, **sizes) -> jax.Array:
    """Returns int32 [cohort, steps, batch]: `batches.places` of all clients."""
    return jax.vmap(lambda key, client: batches.places(starts, key, client, **sizes))(
        keys, cohort
    )


def gather(data: OnHost, drawn: np.ndarray, sharding: jax.sharding.Sharding) -> Any:
    """Returns the batches at these `places`: leaves [cohort, steps, batch, ...].

    Only the examples that were drawn are read, and a process reads those of its own
    devices, by the `sharding` of the first axis.
    """

    def on_devices(leaf):
        def of_device(index):
            places = drawn[index[0]]
            rows = np.take(np.asarray(leaf), data.indices[places], axis=0)
            rows[places < 0] = 0  # clients without examples
            return rows

        shape = (*drawn.shape, *leaf.shape[1:])
        return jax.make_array_from_callback(shape, sharding, of_device)

    return jax.tree.map(on_devices, data.examples)
