"""The mesh: devices in rows, which share the clients of a round.

A row is one device, or several that hold a client's model together.
"""

import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core import trees
from fl_sketch.core.platforms import GPU

AXIS = "clients"
MODEL = trees.MODEL
AT_ONCE = 8  # clients of a row that an accelerator works on at a time
WORKING_SHARE = 0.25  # of a GPU's memory for the local work of clients
UNSPLIT = {
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
    "xla_cpu_multi_thread_eigen": False,
}


def cores() -> int:
    """Returns the number of the host's cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_cpu(mesh: Mesh | AbstractMesh) -> bool:
    """Returns whether the devices of a mesh are CPUs; abstract ones are not."""
    if isinstance(mesh, AbstractMesh):
        return False
    return mesh.devices.flat[0].platform == "cpu"


def chunk_size(
    mesh: Mesh | AbstractMesh, places: int, working: int = 0, *, given: int = 0
) -> int:
    """Returns how many clients a row works on at a time, at most all that it has.

    On a CPU that is one by default, since `vmap` makes convolutions slow there. On a
    GPU it is as many as fit, since every step costs the time of its launches.

    Args:
      places: the number of clients of a round.
      working: the bytes that the local work of one writes; 0: unknown.
      given: the number that a caller wants; 0: the default.
    """
    each = -(-places // rows(mesh))  # in equal turns
    if given:
        return min(given, each)
    if on_cpu(mesh):
        return 1
    most = _that_fit(mesh, working) or AT_ONCE
    return -(-each // -(-each // most))


def _that_fit(mesh: Mesh | AbstractMesh, working: int) -> int | None:
    """Returns how many clients fit a GPU; None: it is no GPU, or none is known."""
    if isinstance(mesh, AbstractMesh) or not working:
        return None
    device = mesh.devices.flat[0]
    if device.platform != GPU:
        return None
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    return max(1, int(WORKING_SHARE * memory) // working) if memory else None


def mesh_over(devices: Sequence[jax.Device], model: int = 1) -> Mesh:
    """Returns the mesh of devices along the axis `AXIS`.

    Args:
      model: the number of devices, along the axis `MODEL`, that hold a client's model
        together; one: there is no such axis.
    """
    shape, names = ((len(devices),), (AXIS,))
    if model > 1:
        shape, names = (len(devices) // model, model), (AXIS, MODEL)
    auto = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(shape, names, axis_types=auto, devices=devices)


def rows(mesh: Mesh | AbstractMesh) -> int:
    """Returns the number of rows, which share the clients of a round."""
    return mesh.shape[AXIS]


def is_one_row(mesh: Mesh | AbstractMesh) -> bool:
    """Returns whether all devices of a mesh hold one model together.

    A sum over rows then has one term, and `over_rows` leaves it out, because the
    partitioner for CPUs refuses it for arrays that are cut (jaxlib 0.10.2).
    """
    return MODEL in mesh.shape and mesh.shape[AXIS] == 1


def over_rows(tree: Any) -> Any:
    """Returns the sum of a tree over rows, within a `shard_map` over them.

    Where `is_one_row`, the `shard_map` must not check what differs between rows.
    """
    alone = is_one_row(jax.sharding.get_abstract_mesh())
    return tree if alone else jax.lax.psum(tree, AXIS)


def layout(mesh: Mesh, params: Any, tree: Any) -> Any:
    """Returns the sharding of each leaf of a tree that may hold copies of a model.

    Arrays of the model's shapes, also with a leading axis of clients, are cut where
    `trees.cut` cuts them, the same in every row. All others are whole on each device.
    """
    parts = mesh.shape.get(MODEL, 1)
    shapes = {leaf.shape for leaf in jax.tree.leaves(params)}
    axes = {shape: trees.cut(shape, parts) for shape in shapes}

    def of(leaf):
        for lead in (0, 1):  # one behind the axis of clients
            axis = axes.get(leaf.shape[lead:])
            if axis is not None:
                return NamedSharding(mesh, P(*[None] * (lead + axis), MODEL))
        return NamedSharding(mesh, P())

    return jax.tree.map(of, tree)


def placed(mesh: Mesh, tree: Any) -> Any:
    """Returns arrays that programs only read, on the devices of a mesh.

    They are cut as a model of their shapes is.
    """
    return jax.device_put(tree, layout(mesh, tree, tree))


def compiler_options(mesh: Mesh) -> dict[str, bool | str]:
    """Returns options for a program in which each device works independently.

    XLA for CPUs splits long loops between the cores of a host, even where each core is
    a device that is busy with its own clients. The halves of a loop then wait for each
    other. Where there are as many devices as cores, loops stay whole. Options in
    XLA_FLAGS are left as they are.
    """
    busy = on_cpu(mesh) and len(mesh.local_devices) >= cores()
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: UNSPLIT[name] for name in UNSPLIT if busy and name not in flags}


def name_of(mesh: Mesh) -> str:
    """Returns the number and kind of the devices, and whether each has its own core."""
    name = f"{mesh.size} {mesh.devices.flat[0].device_kind}"
    return name + ", each with a core" * bool(compiler_options(mesh))
