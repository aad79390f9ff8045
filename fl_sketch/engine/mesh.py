"""The mesh: devices in one row, which share the clients of a round."""

from collections.abc import Sequence

import jax

AXIS = "clients"


def mesh_over(devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """Returns the mesh of these devices."""
    auto = jax.sharding.AxisType.Auto
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(auto,), devices=devices)
