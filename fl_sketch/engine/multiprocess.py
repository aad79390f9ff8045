"""What the processes of one run exchange: texts, bytes, and what to do next.

All processes must call these functions in the same order.
"""

import json
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

PART = 2**28  # bytes of one broadcast


def several() -> bool:
    """Returns whether this run has more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Returns whether this process owns the folder of the run."""
    return jax.process_index() == 0


def agree(pace: int, stop: bool) -> tuple[int, bool]:
    """Returns the smallest `pace` of all processes, and whether one wants to `stop`."""
    if not several():
        return pace, stop
    both = multihost_utils.process_allgather(np.array([pace, stop], np.int32))
    return int(both[:, 0].min()), bool(both[:, 1].any())


def from_first(data: bytes) -> bytes:
    """Returns the data of the first process, in every process."""
    if not several():
        return data
    many = multihost_utils.broadcast_one_to_all(np.int32(-(-len(data) // PART)))
    parts = []
    for number in range(int(many)):
        part = data[number * PART : (number + 1) * PART]
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(part))))
        mine = np.frombuffer(part if is_first() else bytes(length), np.uint8)
        parts.append(multihost_utils.broadcast_one_to_all(mine).tobytes())
    return b"".join(parts)


def require_same(values: Callable[[], Mapping[str, str]]) -> None:
    """Raises in all processes unless they have the same `values()`, texts by name.

    Call it before anything is compiled. Only several processes read `values`.
    """
    if not several():
        return
    here = dict(values())
    first = json.loads(from_first(json.dumps(here).encode()))
    names = list(first)
    differ = [n for n, name in enumerate(names) if here.get(name) != first[name]]
    mine = np.int32(differ[0] if differ else len(names))
    found = np.ravel(multihost_utils.process_allgather(mine))
    if found.min() < len(names):
        name, process = names[found.min()], int(found.argmin())
        msg = (
            f"processes have different values of {name}: {first[name]} in process 0, "
            f"not in process {process} (here: {here.get(name)})."
        )
        raise ValueError(msg)
