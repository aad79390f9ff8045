"""1-bit Adam: rounds of Adam, then signs of momentum and a frozen second moment."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch import transforms
from fl_sketch.channels.basic import coded, whole_or
from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Delivery,
    Downlink,
    Local,
    Memory,
    Tree,
)
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


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

    The first `warmup` rounds (T_w, at least one) are Adam's, uncompressed. Then the
    second moment is frozen (line 3). Each worker makes its own momentum from the last
    common one (line 6) and sends the signs of it plus its error, with their scale
    (lines 7 and 8). The server does the same with the mean and its own error (lines 9
    to 11). The result is the common momentum (line 12) of the model's step (line 13).

    Until the freeze this is `optax.adam` with its bias corrections; later the
    correction of the momentum continues, and that of the second moment stays.
    Coordinates without a gradient until then do not change: in the paper the signs
    would move them to infinity.

    Reference: Tang et al. (2021), Algorithm 1.
    """
    validate.at_least_one(warmup=warmup)
    sign = compressors.scaled_sign()
    down = optax.conditionally_transform(
        transforms.error_feedback(transforms.compress(sign)),
        lambda step, **_: jnp.asarray(step) >= warmup,
    )
    return Algorithm(
        local=_momenta(loss, b1),
        uplink=_either(warmup),
        server=optax.chain(
            _freezing_adam(b1, b2, eps, warmup),
            optax.scale_by_learning_rate(server_rate),
        ),
        downlink=Downlink(down, sign.bits, warmup),
    )


def _momenta(loss: local.Loss, b1: float) -> Local:
    """The gradient, and the momentum that it makes of the last common one (line 6)."""
    gradient = local.one_gradient(loss)

    def run(server, state, batches, keys):
        work = gradient.run(server, state, batches, keys)
        common = server.opt[0].momentum
        return work._replace(update=(work.update, _moved(b1, common, work.update)))

    return Local(run)


def _either(warmup: int) -> Channel:
    """Sends gradients, and later the signs of momenta, with error feedback."""
    sign = compressors.scaled_sign()

    def init(params):
        return Memory(client=jax.tree.map(jnp.zeros_like, params))

    def protocol(update, memory, keys, round):
        (gradient, momentum), error = update, memory.client
        warm = round.number < warmup

        corrected = jax.tree.map(jnp.add, momentum, error)
        short = coded(sign, keys.own, corrected)
        mean = yield whole_or(warm, gradient, short)
        signs = round.counted(short.value)
        left = jax.tree.map(jnp.subtract, corrected, signs)
        left = jax.tree.map(lambda a, b: jnp.where(warm, a, b), error, left)
        return Delivery(mean, signs), Memory(client=trees.if_finite(left, error))

    return Channel(protocol, init)


def _moved(b1: float, momentum: Tree, gradient: Tree) -> Tree:
    return jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, momentum, gradient)


class FreezingState(NamedTuple):
    """Adam's moments, of which the second is frozen at some round, and the steps."""

    momentum: Tree
    second: Tree
    count: jax.Array


def _freezing_adam(b1, b2, eps, warmup: int) -> optax.GradientTransformation:
    """Turns gradients, and later momenta, into Adam's step before its learning rate."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FreezingState(zeros, zeros, jnp.int32(0))

    def update(updates, state, params=None):
        del params
        warm, count = state.count < warmup, state.count + 1
        momentum = jax.tree.map(
            lambda new, common: jnp.where(warm, new, common),
            _moved(b1, state.momentum, updates),
            updates,
        )
        second = jax.tree.map(
            lambda v, g: jnp.where(warm, b2 * v + (1 - b2) * g**2, v),
            state.second,
            updates,
        )
        first_bias = 1 - b1**count
        second_bias = 1 - b2 ** jnp.minimum(count, warmup)
        # Where there never was a gradient, a sign is not zero, and the root is.
        step = jax.tree.map(
            lambda m, v: jnp.where(
                v > 0, m / first_bias / (jnp.sqrt(v / second_bias) + eps), 0
            ),
            momentum,
            second,
        )
        return step, FreezingState(momentum, second, count)

    return optax.GradientTransformation(init, update)
