"""Operations on floats: how many a computation has, and how many a machine can do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from fl_sketch.engine import AXIS
from fl_sketch.experiments.bench.timing import Timed

SIZES = {"cpu": 1024}  # of square matrices, by platform
SIZE, TIMES = 8192, 4  # elsewhere, and how often they are multiplied


def operations(function: Callable, *given: Any) -> float:
    """Returns how many operations a computation has, as its layers are defined.

    They are counted in the form that accelerators get, which has no tricks.

    Args:
      function: the computation.
      *given: its arguments, or their shapes.
    """
    traced = jax.jit(function).trace(*given)
    found = traced.lower(lowering_platforms=("tpu",)).cost_analysis()
    return (found or {}).get("flops", 0.0)


def products(mesh: jax.sharding.Mesh) -> tuple[Timed, float]:
    """Returns products of large matrices on every device, and their operations.

    Args:
      mesh: the devices.
    """
    size = SIZES.get(mesh.devices.flat[0].platform, SIZE)

    def on_device(x, y):
        x, y = (jax.lax.pcast(one, AXIS, to="varying") for one in (x, y))
        for _ in range(TIMES):
            x = x @ y
        return jax.lax.psum(x[0, 0], AXIS)

    run = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P()), out_specs=P())
    square = jnp.full((size, size), 1 / size, jnp.float32)  # a product keeps it
    compiled = jax.jit(run).lower(square, square).compile()

    def call(last):
        del last
        return jax.block_until_ready(compiled(square, square))

    return Timed(lambda: None, call), 2.0 * size**3 * TIMES * mesh.size
