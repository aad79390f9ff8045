"""Where a data set is kept: on the devices, or on the host, batch by batch."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fl_sketch.core import free_memory, validate

FORMS = ("resident", "streamed")
SHARE = 0.5  # of a device's free memory, that a resident data set may take
HOST_LIMIT = 2 * 2**30  # bytes that data may take on all devices of a host's memory


def form(wanted: str, examples: Any, mesh: jax.sharding.Mesh, batches: str) -> str:
    """Returns the one of `FORMS` in which to keep these examples.

    Args:
      wanted: one of them, or "auto": by their size.
      examples: a tree of arrays.
      mesh: the devices.
      batches: one of `data.draws.KINDS`; only fresh ones are streamed.

    Raises:
      ValueError: if they can only be streamed, and their batches cannot.
    """
    validate.one_of(("auto", *FORMS), data=wanted)
    if wanted == "streamed" and batches != "fresh":
        msg = f"Expected data='resident' with {batches} batches, got data='streamed'."
        raise ValueError(msg)
    if wanted != "auto":
        return wanted
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(examples))
    least = room(mesh.local_devices)
    if jax.process_count() > 1:  # all must run the same program
        least = multihost_utils.process_allgather(np.float32(least)).min()
    if size > least and batches != "fresh":
        msg = (
            f"Expected data of at most {least / 1e9:.3g} GB with {batches} batches, "
            f"which are not streamed, got {size / 1e9:.3g} GB: try data='resident'."
        )
        raise ValueError(msg)
    return "streamed" if size > least else "resident"


def room(devices) -> float:
    """Returns how many bytes of data each of this host's `devices` may hold.

    It is `SHARE` of the least that a device has free, or where they use the host's
    memory an equal part each of `HOST_LIMIT`.
    """
    own = free_memory.of_devices(devices)
    return HOST_LIMIT / len(devices) if own is None else SHARE * own
