"""The mesh: devices in one row, which share the clients of a round."""

from collections.abc import Sequence

import jax

AXIS = "clients"


def default_chunk() -> int:
    """Returns how many clients a device works on at a time, where nobody says it.

    On a CPU one: `vmap` makes convolutions slow there.
    """
    return 1 if jax.default_backend() == "cpu" else 8


def mesh_over(devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """Returns the mesh of `devices` in one row, along the axis `AXIS`."""
    auto = jax.sharding.AxisType.Auto
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(auto,), devices=devices)
