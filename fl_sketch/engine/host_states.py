"""The bank of clients' states, on the devices or on the host.

Every client of an algorithm with state has a row in the bank. On the devices the bank
is part of the program. On the host it may be as large as the host's memory: before a
round the rows of its cohort are sent to the devices, and after it those of the clients
that answered are written back.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import free_memory
from fl_sketch.core.protocols import Algorithm, Tree
from fl_sketch.data.residency import room
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.round import State, initial_server

PLACES = ("devices", "host")


def row_bytes(algorithm: Algorithm, params: Tree) -> int:
    """Returns the bytes of one client's state, for parameters or their shapes."""
    _, client = jax.eval_shape(lambda p: initial_server(algorithm, p), params)
    return sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(client)
    )


def place(wanted: str, size: int, mesh: jax.sharding.Mesh) -> str:
    """Returns the one of `PLACES` for a bank of so many bytes.

    Args:
      wanted: one of `PLACES`; or "auto": the devices, if the bank fits there.

    Raises:
      ValueError: if it does not fit.
    """
    devices = mesh.local_devices
    if wanted == "auto":
        limit = room(devices, copies=len(devices))
        wanted = "devices" if size <= limit else "host"
    if wanted == "host" and size and jax.process_count() > 1:
        msg = (
            "Expected clients' states to fit on the devices with several processes, "
            f"got {size / 1e9:.3g} GB of them."
        )
        raise ValueError(msg)
    # Each device has a copy.
    free = free_memory.free(devices) if wanted == "devices" else free_memory.of_host()
    if size > free:
        msg = (
            f"Expected clients' states to fit the free memory of {free / 1e9:.3g} GB, "
            f"got {size / 1e9:.3g} GB with clients={wanted!r}."
        )
        raise ValueError(msg)
    return wanted


def at_places(sampler: Sampler) -> Sampler:
    """Returns a sampler whose cohorts have the rows 0, 1, ... in the bank."""

    def draw(key, number):
        cohort = sampler(key, number)
        return cohort._replace(rows=jnp.arange(cohort.ids.size, dtype=jnp.int32))

    return dataclasses.replace(sampler, draw=draw, timed=True)


def start(state: State, population: int) -> State:
    """Returns the first state of a run, in which all clients are alike, on the host."""

    def bank(leaf):
        first = np.asarray(leaf[0])
        rows = np.zeros((population, *first.shape), first.dtype)
        if first.any():  # numpy gives zeros memory when they are written
            rows[:] = first
        return rows

    return state._replace(clients=jax.tree.map(bank, state.clients))


def cohort_at_a_time(
    one_round: Callable[[State, int], tuple[State, Any]],
    draw: Callable[[int], np.ndarray],
    put: Callable[[Any], Any],
) -> Callable[[State, int], tuple[State, Any]]:
    """Returns `(state, number) -> (state, report)` for a bank on the host.

    The bank is written in place.

    Args:
      one_round: the same for a state with a row for each place.
      draw: `(number) -> ids` of a round's cohort.
      put: `(rows of a cohort) -> rows` on the devices.
    """

    def with_rows(state, number):
        ids, bank = draw(number), state.clients
        rows = put(jax.tree.map(lambda leaf: leaf[ids], bank))
        state, report = one_round(state._replace(clients=rows), number)
        report, rows = jax.device_get((report, state.clients))
        (answered,) = np.nonzero(report.simulator_only.answered[0])
        for leaf, new in zip(jax.tree.leaves(bank), jax.tree.leaves(rows), strict=True):
            leaf[ids[answered]] = new[answered]
        return state._replace(clients=bank), report

    return with_rows
