"""Meshes over some of the eight devices that the tests force."""

import jax
from jax.sharding import AxisType


def mesh_of(count: int, axis: str) -> jax.sharding.Mesh:
    """Returns a mesh of the first `count` devices along one axis."""
    return jax.make_mesh(
        (count,), (axis,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
    )
