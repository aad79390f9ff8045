"""The exact loss and metrics of a model on test data, on all devices."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import models
from fl_sketch.data.examples import Examples
from fl_sketch.engine import AXIS, rows
from fl_sketch.engine.mesh import on_cpu

BATCH, CPU_BATCH = 500, 25  # a CPU's caches hold all layers' outputs of few examples


def make_evaluation(
    loss_of: Callable[[Any], models.Loss],
    parts: Mapping[str, Examples],
    mesh: jax.sharding.Mesh,
) -> tuple[Callable, Any]:
    """Returns `(evaluate(numbers, params, data), data)`, the former not jitted.

    Args:
      parts: examples by the first word of results, as in "test_loss".
    """

    def evaluate(numbers, params, data):
        loss = loss_of(numbers)

        def of_part(batches):
            return jax.shard_map(
                lambda params, batches: _sums(loss, params, batches),
                mesh=mesh,
                in_specs=(P(), P(AXIS)),
                out_specs=P(),
                axis_names={AXIS},
            )(params, batches)

        return {
            f"{part}_{name}": value
            for part, batches in data.items()
            for name, value in loss.report(of_part(batches)).items()
        }

    return evaluate, {name: _batches(part, mesh) for name, part in parts.items()}


def _batches(examples: Examples, mesh: jax.sharding.Mesh) -> Any:
    """Returns (inputs, targets, weights) in batches, spread over the devices.

    All examples have weight one, and those that fill up the last batches weight zero.
    """
    count = len(examples.targets)
    most = CPU_BATCH if on_cpu(mesh) else BATCH
    across = rows(mesh)
    batch = min(most, -(-count // across))
    extra = -count % (batch * across)
    weights = np.pad(np.ones(count, np.float32), (0, extra))
    whole = jax.tree.map(
        lambda leaf: np.pad(leaf, [(0, extra)] + [(0, 0)] * (leaf.ndim - 1), "edge"),
        examples,
    )
    return jax.device_put(
        jax.tree.map(
            lambda leaf: leaf.reshape(-1, batch, *leaf.shape[1:]), (*whole, weights)
        ),
        NamedSharding(mesh, P(AXIS)),
    )


def _sums(loss: models.Loss, params, batches) -> dict[str, Any]:
    """Returns sums over all batches."""
    sums = jax.lax.map(lambda batch: loss.metrics(params, *batch), batches)
    return jax.lax.psum(jax.tree.map(lambda x: x.sum(0), sums), AXIS)
