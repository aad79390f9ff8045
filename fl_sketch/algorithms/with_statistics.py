"""Any algorithm, for models with statistics besides parameters."""

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees
from fl_sketch.core.protocols import Algorithm, Channel, Delivery, Downlink
from fl_sketch.core.trees import Stateful, trained
from fl_sketch.core.wire import FLOAT_BITS


def with_statistics(algorithm: Algorithm, model: Stateful) -> Algorithm:
    """Returns the algorithm for `Stateful` models, as batch normalisation makes them.

    The algorithm trains the parameters. The update of the statistics is sent as it is,
    with 32 bits per number in a separate exchange, and the server changes its own by
    the mean over the clients of the round, as in FedAvg. A sketch may make a variance
    negative, and adaptive steps make no sense for it.

    Args:
      algorithm: an algorithm without a mechanism, which would not bound statistics. Its
        loss returns (value, statistics).
      model: shapes of the model.
    """
    down = algorithm.downlink
    if down is not None:
        bits = down.bits(trees.size(model.params))
        bits += FLOAT_BITS * trees.size(model.state)
        transform = _with_state(down.transform, jnp.positive)
        down = Downlink(transform, lambda d: bits, down.warmup)
    return algorithm._replace(
        uplink=_with_exchange(algorithm.uplink),
        server=_with_state(algorithm.server, jnp.negative),
        downlink=down,
    )


def _with_exchange(channel: Channel) -> Channel:
    """Sends the statistics of an update in an exchange before the channel's own."""

    def protocol(update, memory, keys, round):
        state = yield update.state
        # The mean over those present, also where the sum is divided by another number:
        # a variance that moves three times as far as it should ends below zero.
        scale = round.denominator / jnp.maximum(round.present, 1e-9)
        state = jax.tree.map(lambda mean: scale * mean, state)
        played = channel.protocol(update.params, memory, keys, round)
        delivery, memory = yield from played
        estimate = Stateful(delivery.estimate, state)
        return Delivery(estimate, Stateful(delivery.own, update.state)), memory

    return Channel(protocol, lambda model: channel.init(trained(model)))


def _with_state(tx: optax.GradientTransformation, sign):
    """Applies an optimizer to what is trained, and a sign to the statistics' move."""
    tx = optax.with_extra_args_support(tx)

    def init(params):
        return tx.init(trained(params))

    def update(updates, state, params=None, **extra):
        moved, state = tx.update(updates.params, state, trained(params), **extra)
        return Stateful(moved, jax.tree.map(sign, updates.state)), state

    return optax.GradientTransformationExtraArgs(init, update)
