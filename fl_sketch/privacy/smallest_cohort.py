"""Cohorts that are too small for a release, where clients add their own noise."""

import jax
import jax.numpy as jnp

from fl_sketch.core.protocols import Message


def withheld_below(
    smallest: int, count: jax.Array, mean: Message
) -> tuple[Message, dict[str, jax.Array]]:
    """Returns a mean and its released `withheld`: zeros and one in a small cohort.

    Args:
      smallest: the least number of clients with which the guarantee holds.
      count: the number of clients that sent a message.
      mean: the mean of the messages.
    """
    enough = count >= smallest
    mean = jax.tree.map(lambda leaf: jnp.where(enough, leaf, 0), mean)
    return mean, {"withheld": 1.0 - enough.astype(jnp.float32)}
