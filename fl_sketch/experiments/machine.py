"""How fast devices multiply and copy, measured once and kept in the user's cache."""

import json
import platform
import statistics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import engine
from fl_sketch.core import files
from fl_sketch.experiments.bench.timing import Timed, interleaved

FILE = "machine.json"
SIZES = {"cpu": 1024}  # of square matrices, by platform
SIZE, TIMES = 8192, 4  # elsewhere, and how often they are multiplied
COPIED = 2**25  # float32 numbers on each device, more than a cache holds


class Speed(NamedTuple):
    """What all devices reach together.

    Attributes:
      operations: multiplications and additions a second, in products of matrices.
      bytes: read and written a second, in a copy `x -> -x`.
    """

    operations: float
    bytes: float


def speed(mesh: jax.sharding.Mesh) -> Speed:
    """Returns the speed of the devices, from the user's cache or measured now."""
    name = f"{platform.node()}: {engine.name_of(mesh)}, jax {jax.__version__}"
    kept = files.user_cache() / FILE
    known = _known(kept)
    if name not in known:
        known[name] = measured(mesh)._asdict()
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(kept, json.dumps(known, indent=1) + "\n")
    return Speed(**known[name])


def measured(mesh: jax.sharding.Mesh) -> Speed:
    """Returns the speed of the devices, which takes a second or two."""
    (multiply, operations), (copy, size) = products(mesh), _copies(mesh)
    samples = interleaved({"operations": multiply, "bytes": copy})
    seconds = {name: statistics.median(taken) for name, taken in samples.items()}
    return Speed(operations / seconds["operations"], size / seconds["bytes"])


def products(mesh: jax.sharding.Mesh) -> tuple[Timed, float]:
    """Returns products of large matrices on every device, and their operations."""
    size = SIZES.get(mesh.devices.flat[0].platform, SIZE)

    def on_device(x, y):
        x, y = (jax.lax.pcast(part, mesh.axis_names, to="varying") for part in (x, y))
        for _ in range(TIMES):
            x = x @ y
        return jax.lax.psum(x[0, 0], mesh.axis_names)

    run = jax.jit(
        jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P()), out_specs=P())
    )
    square = jnp.full((size, size), 1 / size, jnp.float32)  # a product leaves it
    timed = Timed(lambda: None, lambda _: jax.block_until_ready(run(square, square)))
    return timed, 2.0 * size**3 * TIMES * mesh.size


def _copies(mesh: jax.sharding.Mesh) -> tuple[Timed, float]:
    """Returns a copy on every device, and the bytes that it reads and writes."""
    spread = NamedSharding(mesh, P(mesh.axis_names))
    negated = jax.jit(jnp.negative, donate_argnums=0, out_shardings=spread)

    def start():
        return jax.device_put(jnp.ones(COPIED * mesh.size, jnp.float32), spread)

    timed = Timed(start, lambda x: jax.block_until_ready(negated(x)))
    return timed, 8.0 * COPIED * mesh.size


def _known(kept: Any) -> dict[str, Any]:
    """Returns what a file of speeds has; nothing if it is missing or damaged."""
    try:
        found = json.loads(kept.read_text())
        return {name: Speed(**each)._asdict() for name, each in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
