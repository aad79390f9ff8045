"""Where a data set is stored: on the devices, or on the host, batch by batch."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fl_sketch.core import free_memory, validate

PLACEMENTS = ("resident", "streamed")
SHARE = 0.5  # of a device's free memory that a resident data set may take
HOST_LIMIT = 2 * 2**30  # bytes of data, where devices use the host's memory


def placement(wanted: str, examples: Any, mesh: jax.sharding.Mesh, batches: str) -> str:
    """Returns the one of `PLACEMENTS` in which to store these examples.

    If "auto" is `wanted`, it is by the size of the examples. Only "fresh" `batches` are
    streamed.
    """
    validate.one_of(("auto", *PLACEMENTS), data=wanted)
    if wanted == "streamed" and batches != "fresh":
        msg = f"Expected data='resident' with {batches} batches, got data='streamed'."
        raise ValueError(msg)
    if wanted != "auto":
        return wanted
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(examples))
    limit = room(mesh.local_devices)
    if jax.process_count() > 1:  # all must run the same program
        limit = multihost_utils.process_allgather(np.float32(limit)).min()
    if size > limit and batches != "fresh":
        msg = (
            f"{batches} batches are not streamed, and data of {size / 1e9:.3g} GB are "
            f"above {limit / 1e9:.3g} GB: try data='resident'."
        )
        raise ValueError(msg)
    return "streamed" if size > limit else "resident"


def room(devices, *, copies: int = 1) -> float:
    """Returns how many bytes of data each of this host's devices may hold.

    It is `SHARE` of the least that a device has free, or `HOST_LIMIT` for all devices
    that use the host's memory. They share one array of examples; of what they do not
    share there are `copies`.
    """
    free = free_memory.of_devices(devices)
    return HOST_LIMIT / copies if free is None else SHARE * free
