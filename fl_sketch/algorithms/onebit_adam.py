"""1-bit Adam: rounds of Adam, then signs of momentum and a frozen second moment."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch import compressors, local, trees, validate
from fl_sketch.protocols import Algorithm, Channel, Delivery, Memory, Tree
from fl_sketch.wire import FLOAT_BITS


def onebit_adam(
    loss: local.Loss,
    *,
    server_rate: optax.ScalarOrSchedule,
    warmup: int,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> Algorithm:
    """Returns 1-bit Adam.

    The first rounds are Adam's, uncompressed. Then the second moment is frozen (line
    3); each worker makes its own momentum from the last common one (line 6) and sends
    the signs of it and its error, with their scale (lines 7 and 8); the server does the
    same with the mean and its own error (lines 9 to 11); what all then have is the
    momentum (line 12) with which the model steps (line 13).

    Args:
      loss: of one batch.
      server_rate: of Adam, before and after.
      warmup: T_w, how many rounds of plain Adam, at least one.
      b1: decay of the momentum.
      b2: decay of the second moment, while it moves.
      eps: beside the root.

    Reference: Tang et al. (2021), Algorithm 1. Until the freeze this is `optax.adam`,
    its corrections of the bias included; later the momentum's goes on and the second
    moment's stays as it was. Coordinates that had no gradient until then stay where
    they are: in the paper the signs would throw them to infinity.
    """
    validate.at_least_one(warmup=warmup)
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=_momenta(b1, warmup),
        server=optax.chain(
            _freezing_adam(b1, b2, eps, warmup),
            optax.scale_by_learning_rate(server_rate),
        ),
        down_bits=compressors.scaled_sign().bits,
        warmup=warmup,
    )


class Common(NamedTuple):
    """What all workers and the server have."""

    momentum: Tree  # like the parameters
    error: Tree  # the server's, of the last message down
    count: jax.Array  # shape=(), int32


def _momenta(b1: float, warmup: int) -> Channel:
    """Sends gradients, then compressed momenta; estimates (gradient, momentum)."""
    sign = compressors.scaled_sign()

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Memory(zeros, Common(zeros, zeros, jnp.int32(0)))

    def compressed(key, tree):
        """Returns what a message stands for."""
        return trees.unraveler(tree)(sign.apply(key, trees.ravel(tree)))

    def less(tree, seen):
        return jax.tree.map(jnp.subtract, tree, seen)

    def moved(momentum, gradient):
        return jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, momentum, gradient)

    def mean(update, memory, keys, link):
        common = memory.server
        warm = common.count < warmup

        def either(first, second):
            return jax.tree.map(lambda a, b: jnp.where(warm, a, b), first, second)

        owed = jax.tree.map(jnp.add, moved(common.momentum, update), memory.client)
        seen = compressed(keys.own, owed)
        heard = link.mean(either(update, seen))
        seen = link.counted(seen)
        # Down again, compressed once more: all that a worker hears of the others.
        whole = jax.tree.map(jnp.add, heard, common.error)
        down = compressed(keys.shared, whole)
        momentum = either(moved(common.momentum, heard), down)
        d = trees.size(update)
        bits = jnp.where(warm, *map(jnp.uint32, (FLOAT_BITS * d, sign.bits(d))))
        after = Memory(
            trees.if_finite(either(memory.client, less(owed, seen)), memory.client),
            Common(momentum, either(common.error, less(whole, down)), common.count + 1),
        )
        return Delivery((heard, momentum), seen, bits), after

    return Channel(init, mean, lambda common: common.momentum)


class FreezingState(NamedTuple):
    """Adam's second moment, and when it was last moved."""

    second: Tree  # like the parameters
    count: jax.Array  # shape=(), int32


def _freezing_adam(b1, b2, eps, warmup: int) -> optax.GradientTransformation:
    """Turns (gradient, momentum) into Adam's step before its learning rate."""

    def init(params):
        return FreezingState(jax.tree.map(jnp.zeros_like, params), jnp.int32(0))

    def update(updates, state, params=None):
        del params
        gradient, momentum = updates
        warm, count = state.count < warmup, state.count + 1
        second = jax.tree.map(
            lambda v, g: jnp.where(warm, b2 * v + (1 - b2) * g**2, v),
            state.second,
            gradient,
        )
        first_bias = 1 - b1**count
        second_bias = 1 - b2 ** jnp.minimum(count, warmup)
        # Where no gradient ever was, a sign is not zero, and the root is.
        step = jax.tree.map(
            lambda m, v: jnp.where(
                v > 0, m / first_bias / (jnp.sqrt(v / second_bias) + eps), 0
            ),
            momentum,
            second,
        )
        return step, FreezingState(second, count)

    return optax.GradientTransformation(init, update)
