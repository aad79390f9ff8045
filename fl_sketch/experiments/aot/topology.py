"""Accelerators that are not at hand, as meshes that programs can be compiled for."""

import contextlib
import math
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh

from fl_sketch import engine
from fl_sketch.config.parse import require_rows
from fl_sketch.core import validate

GIB = 2**30


class Chip(NamedTuple):
    """A kind of TPU.

    Attributes:
      room: the GiB of memory that a program may use, as the compiler itself says it
        when one does not fit; it keeps a little for itself.
      axes: the number of axes along which chips of a slice stand.
      most: the number of chips of the largest slice; of more, the compiler's library
        ends the process.
    """

    room: float
    axes: int
    most: int


CHIPS = {
    "v5e": Chip(15.75, 2, 256),
    "v5p": Chip(95.73, 3, 8960),
    "v6e": Chip(31.24, 2, 256),
}
SHAPE = re.compile(rf"({'|'.join(CHIPS)}):([1-9]\d*(?:x[1-9]\d*)+)")
# What the compiler's library would else ask a network for, or complain of.
QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def of_tpus(name: str, model: int = 1) -> Mesh:
    """Returns the mesh of a slice of TPUs, of which none need be here.

    Args:
      name: a chip of `CHIPS` and how many there are along each axis, as in v5e:4x4.
      model: the number of them that hold a client's model together.

    Raises:
      ValueError: in one line, for a slice that there is not, or without the compiler's
        library.
    """
    _require_shape(name)
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        with own_flags():
            found = topologies.get_topology_desc(topology_name=name, platform="tpu")
    except RuntimeError as error:  # also of jax
        raise ValueError(_said(name, str(error))) from None
    require_rows(len(found.devices), model)
    return engine.mesh_over(found.devices, model)


def _require_shape(name: str) -> None:
    """Raises a ValueError for what no slice is called, or for too many chips."""
    shape = SHAPE.fullmatch(name)
    sizes = [int(size) for size in shape[2].split("x")] if shape else []
    if not shape or len(sizes) != CHIPS[shape[1]].axes:
        known = "|".join(of for of, chip in CHIPS.items() if chip.axes == 2)
        msg = (
            f"Expected topology={known}:NxM, as v5e:4x4, or v5p:NxMxK, got "
            f"topology={name}."
        )
        raise ValueError(msg)
    most = CHIPS[shape[1]].most
    if math.prod(sizes) > most:
        msg = f"Expected at most {most} chips of {shape[1]}, got topology={name}."
        raise ValueError(msg)


@contextlib.contextmanager
def own_flags() -> Iterator[None]:
    """Keeps XLA_FLAGS from the compiler for TPUs, to be entered before it is called.

    They are for the devices of this machine, whose compiler has read them by then. What
    the other one does not know of them would end the process; it has LIBTPU_INIT_ARGS.
    """
    jax.devices()
    kept = os.environ.pop("XLA_FLAGS", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["XLA_FLAGS"] = kept


def _said(name: str, error: str) -> str:
    """Says in one line why there is no such slice."""
    if "not installed" in error:
        return (
            "Expected libtpu, the compiler for TPUs, which pip install "
            f"'fl_sketch[tpu]' has, for topology={name}, got none."
        )
    first = error.strip().partition("\n")[0].partition(": ")[2]
    return f"Expected a topology that there is, got topology={name}: {first}."


def of_gpus(count: int, model: int = 1) -> AbstractMesh:
    """Returns a mesh of as many GPUs, of no kind, that programs are lowered for.

    Args:
      count: the number of GPUs.
      model: the number of them that hold a client's model together.

    Raises:
      ValueError: in one line, for a number that cannot be.
    """
    validate.at_least_one(devices=count)
    require_rows(count, model)
    shape, names = (count,), (engine.AXIS,)
    if model > 1:
        shape, names = (count // model, model), (engine.AXIS, engine.MODEL)
    return AbstractMesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def memory(mesh: Mesh) -> float:
    """Returns the bytes of memory that a program may use of each chip of a `mesh`."""
    kind = mesh.devices.flat[0].device_kind
    return GIB * CHIPS[_names()[kind]].room


def _names() -> dict[str, str]:
    """Returns the names of chips in topologies by what the chips call themselves."""
    return {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}
