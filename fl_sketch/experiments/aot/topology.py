"""Meshes of accelerators that need not be here, to compile programs for."""

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
      kind: what the chip calls itself.
      room: the GiB of memory that a program may use, as the compiler itself says it
        when one does not fit; it keeps a little for itself.
      axes: the number of axes along which chips of a slice stand.
      most: the number of chips of the largest slice; of more, the compiler's library
        ends the process.
    """

    kind: str
    room: float
    axes: int
    most: int


CHIPS = {
    "v5e": Chip("TPU v5 lite", 15.75, 2, 256),
    "v5p": Chip("TPU v5", 95.73, 3, 8960),
    "v6e": Chip("TPU v6 lite", 31.24, 2, 256),
}
SHAPE = re.compile(rf"({'|'.join(CHIPS)}):([1-9]\d*(?:x[1-9]\d*)+)")
# Without these the compiler's library asks a network, or warns.
QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def of_tpus(name: str, model: int = 1) -> Mesh:
    """Returns the mesh of a slice of TPUs.

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
            slice_of = topologies.get_topology_desc(topology_name=name, platform="tpu")
    except RuntimeError as error:  # also of jax
        reason = str(error).strip().partition("\n")[0].partition(": ")[2]
        msg = f"Expected an existing topology, got topology={name}: {reason}."
        if "not installed" in str(error):
            msg = f"Expected libtpu, the compiler for TPUs, with topology={name}, got "
            msg += "none: pip install libtpu."
        raise ValueError(msg) from None
    require_rows(len(slice_of.devices), model)
    return engine.mesh_over(slice_of.devices, model)


def _require_shape(name: str) -> None:
    """Raises a ValueError for what no slice is called, or for too many chips."""
    shape = SHAPE.fullmatch(name)
    sizes = [int(size) for size in shape[2].split("x")] if shape else []
    if not shape or len(sizes) != CHIPS[shape[1]].axes:
        flat = "|".join(chip for chip in CHIPS if CHIPS[chip].axes == 2)
        msg = (
            f"Expected topology={flat}:NxM, as v5e:4x4, or v5p:NxMxK, got "
            f"topology={name}."
        )
        raise ValueError(msg)
    most = CHIPS[shape[1]].most
    if math.prod(sizes) > most:
        msg = f"Expected at most {most} chips of {shape[1]}, got topology={name}."
        raise ValueError(msg)


@contextlib.contextmanager
def own_flags() -> Iterator[None]:
    """Hides XLA_FLAGS from the compiler for TPUs while the context is open.

    They are for the devices of this machine, which have read them by then. A flag that
    the compiler for TPUs does not know ends the process; it has LIBTPU_INIT_ARGS.
    """
    jax.devices()
    hidden = os.environ.pop("XLA_FLAGS", None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ["XLA_FLAGS"] = hidden


def of_gpus(count: int, model: int = 1) -> AbstractMesh:
    """Returns a mesh of GPUs, of no kind, that programs are lowered for.

    `model` of them hold a client's model together.
    """
    validate.at_least_one(devices=count)
    require_rows(count, model)
    shape, names = (count,), (engine.AXIS,)
    if model > 1:
        shape, names = (count // model, model), (engine.AXIS, engine.MODEL)
    return AbstractMesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def memory(mesh: Mesh) -> float:
    """Returns the bytes of memory that a program may use of each chip of a mesh."""
    kind = mesh.devices.flat[0].device_kind
    return next(chip.room for chip in CHIPS.values() if chip.kind == kind) * GIB
