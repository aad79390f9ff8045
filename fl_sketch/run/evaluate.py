"""The exact loss and accuracy on a test set, shared out to all devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import models
from fl_sketch.data import datasets
from fl_sketch.engine import AXIS

BATCH = 500


def make_evaluation(
    loss_of: Callable[[Any], models.Loss],
    test: datasets.Examples,
    mesh: jax.sharding.Mesh,
) -> tuple[Callable, Any]:
    """Returns `(evaluate(numbers, params, data), data)`, the former not jitted.

    Args:
      loss_of: `(numbers) -> Loss`.
      test: all examples count once; what fills up the last batches counts zero.
      mesh: devices along the axis of clients.
    """
    count = len(test.targets)
    batch = min(BATCH, -(-count // mesh.size))
    extra = -count % (batch * mesh.size)
    weights = np.pad(np.ones(count, np.float32), (0, extra))
    whole = jax.tree.map(lambda leaf: np.pad(leaf, _last(leaf, extra), "edge"), test)
    data = jax.device_put(
        jax.tree.map(
            lambda leaf: leaf.reshape(-1, batch, *leaf.shape[1:]), (*whole, weights)
        ),
        NamedSharding(mesh, P(AXIS)),
    )

    def evaluate(numbers, params, data):
        loss = loss_of(numbers)

        def of_batch(params, batch):
            inputs, targets, weights = batch
            return loss.metrics(params, datasets.normalise(inputs), targets, weights)

        def on_device(params, batches):
            sums = jax.lax.map(lambda batch: of_batch(params, batch), batches)
            return jax.lax.psum(jax.tree.map(jnp.sum, sums), AXIS)

        total = jax.shard_map(
            on_device, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P()
        )(params, data)
        return {
            "test_loss": total["loss"] / total["count"],
            "test_accuracy": total["correct"] / total["count"],
        }

    return evaluate, data


def _last(leaf: np.ndarray, extra: int):
    return [(0, extra)] + [(0, 0)] * (leaf.ndim - 1)
