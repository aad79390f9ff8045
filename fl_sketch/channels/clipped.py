"""A channel for updates with heavy tails: long ones are shortened before they leave."""

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import validate
from fl_sketch.core.protocols import Channel


def clipped(channel: Channel, limit: float | jax.Array) -> Channel:
    """Scales an update down to the norm `limit` where it is longer.

    The norm is that of the update as one vector, before the channel does anything to
    it: a sketch keeps norms on average only, so a bound on the message would cut
    clients by chance. It is no privacy mechanism, which must bound what leaves.

    Args:
      channel: the channel for the shortened updates.
      limit: the largest norm, tau; 0 for none, as one point of a sweep may have it.
    """
    if validate.is_off(limit):
        return channel

    def talk(update, memory, keys, round):
        # In float32, since squares of float16 overflow from 256 on.
        norm = optax.tree.norm(optax.tree.cast(update, jnp.float32))
        shorter = jnp.where((limit > 0) & (norm > limit), limit / norm, 1)
        update = jax.tree.map(lambda leaf: (leaf * shorter).astype(leaf.dtype), update)
        return (yield from channel.talk(update, memory, keys, round))

    return channel._replace(talk=talk)
