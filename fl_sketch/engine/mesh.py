"""The mesh: devices in one row, which share the clients of a round."""

import os
from collections.abc import Sequence

import jax

AXIS = "clients"
UNSPLIT = {
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
    "xla_cpu_multi_thread_eigen": False,
}


def cores() -> int:
    """Returns how many cores of the host this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_chunk() -> int:
    """Returns how many clients a device works on at a time, where nobody says it.

    On a CPU one: `vmap` makes convolutions slow there.
    """
    return 1 if jax.default_backend() == "cpu" else 8


def mesh_over(devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """Returns the mesh of `devices` in one row, along the axis `AXIS`."""
    auto = jax.sharding.AxisType.Auto
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(auto,), devices=devices)


def compiler_options(mesh: jax.sharding.Mesh) -> dict[str, bool | str]:
    """Returns how to compile a program in which each device has work of its own.

    XLA for CPUs splits long loops between the cores of a host, even where each is a
    device that is busy with its own clients: halves of one loop then wait for the
    other, and find in its cache what they need. Where there are as many devices as
    cores, loops stay whole. What XLA_FLAGS says of an option is left as it is.

    Args:
      mesh: the devices.
    """
    devices = mesh.local_devices
    apart = devices[0].platform == "cpu" and len(devices) >= cores()
    said = os.environ.get("XLA_FLAGS", "")
    return {name: UNSPLIT[name] for name in UNSPLIT if apart and name not in said}
