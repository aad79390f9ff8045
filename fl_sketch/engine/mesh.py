"""The mesh: devices in rows, which share the clients of a round.

A row is one device, or as many as it takes to hold a client's model.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core import trees

AXIS = "clients"
MODEL = trees.MODEL
AT_ONCE = 8  # clients of a row that an accelerator works on at a time
UNSPLIT = {
    "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
    "xla_cpu_multi_thread_eigen": False,
}


def cores() -> int:
    """Returns how many cores of the host this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_cpu(mesh: Mesh | AbstractMesh) -> bool:
    """Returns whether the devices of a `mesh` are CPUs; none at all are not."""
    if isinstance(mesh, AbstractMesh):
        return False
    return mesh.devices.flat[0].platform == "cpu"


def default_chunk(mesh: Mesh, places: int) -> int:
    """Returns how many clients a row works on at a time, where nobody says it.

    On a CPU one: `vmap` makes convolutions slow there.

    Args:
      mesh: the devices.
      places: the number of places of a cohort.
    """
    if on_cpu(mesh):
        return 1
    each = -(-places // rows(mesh))  # no fuller than it must be in the last turn
    return -(-each // -(-each // AT_ONCE))


def mesh_over(devices: Sequence[jax.Device], model: int = 1) -> Mesh:
    """Returns the mesh of devices along the axis `AXIS`.

    Args:
      devices: the devices.
      model: the number of them, along the axis `MODEL`, that hold a client's model
        together; a divisor of theirs. One: there is no such axis.
    """
    shape, names = ((len(devices),), (AXIS,))
    if model > 1:
        shape, names = (len(devices) // model, model), (AXIS, MODEL)
    auto = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(shape, names, axis_types=auto, devices=devices)


def rows(mesh: Mesh) -> int:
    """Returns between how many the clients of a round are shared out by a `mesh`."""
    return mesh.shape[AXIS]


def is_one_row(mesh: Mesh | AbstractMesh) -> bool:
    """Returns whether all devices of a `mesh` hold one model together.

    A sum over rows has one part then, and `over_rows` leaves it out, because CPUs'
    partitioner refuses it for arrays that are cut (jaxlib 0.10.2).
    """
    return MODEL in mesh.shape and mesh.shape[AXIS] == 1


def over_rows(tree: Any) -> Any:
    """Returns the sum of a `tree` over rows, on a device in a `shard_map` over them.

    Where `is_one_row`, the `shard_map` must not check what differs between rows.
    """
    alone = is_one_row(jax.sharding.get_abstract_mesh())
    return tree if alone else jax.lax.psum(tree, AXIS)


def layout(mesh: Mesh, params: Any, tree: Any) -> Any:
    """Returns the sharding of each leaf of what is shaped like a model, or holds such.

    Arrays of the model's shapes, of clients' states too, are cut where `trees.cut` cuts
    them, and lie on the devices of every row; all else lies on each device whole.

    Args:
      mesh: the devices.
      params: the model, or its shapes.
      tree: the arrays, or their shapes.
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


def on_all(function: Callable, mesh: Mesh) -> Callable:
    """Returns `function` over a leading axis of all arguments, on all devices.

    On each device it goes through its share one by one: what searches takes different
    numbers of steps, and a CPU has nothing to gain from batches.

    Args:
      function: a function of one entry of each argument.
      mesh: the devices.
    """

    def over(*arguments):
        share = jax.shard_map(
            lambda *own: jax.lax.map(lambda one: function(*one), own),
            mesh=mesh,
            in_specs=P(AXIS),
            out_specs=P(AXIS),
            check_vma=False,  # optax's line search does not know of it
        )
        count = len(jax.tree.leaves(arguments)[0])
        extra = -count % rows(mesh)

        def padded(leaf):
            return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], extra, axis=0)])

        found = share(*jax.tree.map(padded, arguments))
        return jax.tree.map(lambda leaf: leaf[:count], found)

    return over


def compiler_options(mesh: Mesh) -> dict[str, bool | str]:
    """Returns how to compile a program in which each device has work of its own.

    XLA for CPUs splits long loops between the cores of a host, even where each is a
    device that is busy with its own clients: halves of one loop then wait for the
    other, and find in its cache what they need. Where there are as many devices as
    cores, loops stay whole. What XLA_FLAGS says of an option is left as it is.

    Args:
      mesh: the devices.
    """
    apart = on_cpu(mesh) and len(mesh.local_devices) >= cores()
    said = os.environ.get("XLA_FLAGS", "")
    return {name: UNSPLIT[name] for name in UNSPLIT if apart and name not in said}


def name_of(mesh: Mesh) -> str:
    """Returns the number and the kind of the devices, and whether each has a core."""
    name = f"{mesh.size} {mesh.devices.flat[0].device_kind}"
    return name + ", each with a core" * bool(compiler_options(mesh))
