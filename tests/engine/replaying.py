"""A client that replays the server's steps, from nothing but what it sent to all."""

import jax
import jax.numpy as jnp

from fl_sketch.channels import player
from fl_sketch.core.protocols import Keys, Memory, Round


def replay(algorithm, server, keys, received, *, update=None, known=Round()):  # noqa: B008
    """Returns the server after some rounds, to the bit on one platform.

    Args:
      server: the server before the first of these rounds.
      keys: the shared key of each round, which the server sends with its mean.
      received: what the server sent in each round, along a leading axis: the mean
        message, or a tuple of means for several exchanges; with a downlink, its output.
      update: an example of a client's update, if it is not shaped like the parameters.
      known: the weights of all clients and of those present, and the denominator.
    """
    channel, client = algorithm.uplink, algorithm.uplink.init(server.params).client
    like = server.params if update is None else update
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    counts = {
        name: jnp.broadcast_to(jnp.float32(getattr(known, name)), keys.shape)
        for name in ("denominator", "present", "population")
    }

    def arguments(server, shared, counts):
        memory, all_keys = Memory(client, server.memory), Keys(shared, shared, shared)
        return blank, memory, all_keys, Round(server.round, **counts)

    def one_round(server, slices):
        shared, sent, counts = jax.lax.optimization_barrier(slices)
        if algorithm.downlink is None:
            means = sent if several else (sent,)
            turn = player.play(channel, arguments(server, shared, counts), means)
            end = player.ended(channel, turn)
            server = server._replace(memory=end.memory.server)
            sent = end.delivery.estimate
        return player.step(algorithm, server, sent, Keys(shared, shared, shared)), None

    several = False
    if algorithm.downlink is None:
        first = arguments(server, keys[0], dict.fromkeys(counts, 1.0))
        several = len(jax.eval_shape(lambda: player.messages(channel, first))) > 1
    return jax.lax.scan(one_round, server, (keys, received, counts))[0]
