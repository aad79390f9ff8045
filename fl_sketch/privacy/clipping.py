"""Bounds on what one client, or one example, contributes: l2 norms of pytrees.

The norm is that of all entries of a message together, in float32. Whatever has a norm
that float32 cannot hold is treated like a NaN: such a client could decide the sum.

=======================  ==========================  ==========================
message                  `clip` to C                 `normalise` to C
=======================  ==========================  ==========================
norm at most C           itself                      its direction, of norm C
norm above C             its direction, of norm C    its direction, of norm C
zero                     zero                        zero
norm above 1.8e19, NaN   zero, counted as rejected   the same
=======================  ==========================  ==========================

Entries below 2^-63, whose squares are no floats, become zero first. What a bound
returns then has a norm of at most C (1 + 1e-6), whatever the message is.

>>> import jax.numpy as jnp
>>> message = {"w": jnp.array([3.0, 0.0]), "b": jnp.array(4.0)}
>>> bounded, rejected = normalise(10.0).apply(message)
>>> bounded["w"], rejected
(Array([6., 0.], dtype=float32), Array(0., dtype=float32))
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.protocols import Encoded, Message, Tree

SMALLEST = 2.0**-63  # the least number whose square is a normal float32


class Bound(NamedTuple):
    """A map to messages of norm at most C, with the C that noise scales by.

    Attributes:
      apply: `(message) -> (message, rejected)`, of norm at most C up to float rounding;
        zero and 1.0 where the norm is not finite, else 0.0.
      limit: C; may be traced.
      name: its name in a release.
    """

    apply: Callable[[Message], tuple[Message, jax.Array]]
    limit: jax.typing.ArrayLike
    name: str = "one's own"


OfLimit = Callable[[jax.typing.ArrayLike], Bound]  # `clip` or `normalise`


def clip(limit: jax.typing.ArrayLike) -> Bound:
    """Shortens a message to norm C if it is longer: `u min(1, C / |u|)`.

    Args:
      limit: C, above zero; may be traced. Infinity changes nothing, and allows no
        noise.
    """
    return _bound("clip", limit, lambda length: length <= limit)


def normalise(limit: jax.typing.ArrayLike) -> Bound:
    """Gives every message but zero norm C: `C u / |u|`.

    Args:
      limit: C, above zero; may be traced.
    """
    return _bound("normalise", limit, lambda length: length == 0)


def norm(message: Message) -> jax.Array:
    """Returns the l2 norm of all entries of `message` together, float32 []."""
    sums = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(_in_float32(message))]
    while len(sums) > 1:  # in pairs: a long sum in one order would lose small terms
        sums = [sum(sums[at : at + 2]) for at in range(0, len(sums), 2)]
    return jnp.sqrt(sums[0])


def clipped_gradient_sum(
    loss: Callable[[Tree, Tree], jax.Array],
    params: Tree,
    batch: Tree,
    limit: jax.typing.ArrayLike,
) -> tuple[Tree, jax.Array, jax.Array]:
    """Returns the sum of per-example gradients, each clipped to norm `limit`.

    Args:
      loss: `(params, batch) -> scalar`, the mean over a batch.
      params: the parameters of the model.
      batch: leaves with a leading axis of examples.
      limit: the bound, which stands for the Lipschitz constant.

    Returns:
      The sum, the mean loss of the examples with a finite gradient, and the number of
      the other examples, which are left out.
    """
    bound = clip(limit)

    def of_example(example):
        batch_of_one = jax.tree.map(lambda leaf: leaf[None], example)
        value, gradient = jax.value_and_grad(loss)(params, batch_of_one)
        gradient, rejected = bound.apply(gradient)
        return gradient, jnp.where(rejected > 0, 0, value), rejected

    gradients, values, rejected = jax.vmap(of_example)(batch)
    total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradients)
    dropped = jnp.sum(rejected)
    return total, jnp.sum(values) / jnp.maximum(values.size - dropped, 1), dropped


def split_noise(noise_multiplier: float, count_noise: float) -> float:
    """Returns the noise multiplier left for messages when a count shares z.

    Adaptive clipping releases the sum of messages and the sum of b_i - 1/2, where b_i
    says whether message i was short enough. The second changes by at most 1/2 and gets
    noise of standard deviation s_b. Together they give away what one sum with
    multiplier z gives away if z_delta = (z^-2 - (2 s_b)^-2)^(-1/2).

    >>> round(split_noise(1.0, 5.0), 7)
    1.0050378

    Args:
      noise_multiplier: the multiplier z of both together; of 0 nothing is left.
      count_noise: s_b.

    Raises:
      ValueError: unless z < 2 s_b, since the count alone would give away as much.

    Reference: Andrew et al. (2021), Theorem 1.
    """
    if noise_multiplier == 0:
        return 0.0
    if not noise_multiplier < 2 * count_noise:
        msg = (
            f"Expected noise_multiplier < 2 count_noise = {2 * count_noise}, "
            f"got noise_multiplier={noise_multiplier}."
        )
        raise ValueError(msg)
    return (noise_multiplier**-2 - (2 * count_noise) ** -2) ** -0.5


def infinite(limit: jax.typing.ArrayLike) -> bool:
    """Returns whether `limit` is known, not traced, to be infinite."""
    return validate.is_known(limit) and limit == math.inf


def bounded(bound: Bound) -> Callable[[Any, Message], Encoded]:
    """Returns `Mechanism.bounded` of a `bound` that does not change."""

    def left(state, message):
        del state
        return Encoded(*bound.apply(message))

    return left


def require_noise(bound: Bound, noise_multiplier: float, denominator: float) -> None:
    """Raises a ValueError for noise, or a bound of it, that cannot be."""
    validate.in_range(0, math.inf, noise_multiplier=noise_multiplier)
    validate.in_range(0, math.inf, denominator=denominator)
    if not denominator > 0:
        msg = f"Expected denominator > 0, got denominator={denominator}."
        raise ValueError(msg)
    if noise_multiplier and infinite(bound.limit):
        msg = (
            "Expected a finite threshold with noise_multiplier > 0, got threshold=inf."
        )
        raise ValueError(msg)


def _bound(name: str, limit: jax.typing.ArrayLike, unchanged: Callable) -> Bound:
    """Returns the map to norm C of all messages but those of an unchanged length."""
    if not infinite(limit):
        validate.in_range(0, math.inf, threshold=limit)
        if validate.is_off(limit):
            msg = f"Expected threshold > 0, got threshold={limit}."
            raise ValueError(msg)

    def apply(message):
        message = _in_float32(message)
        length = norm(message)
        finite, short = jnp.isfinite(length), unchanged(length)
        divisor = jnp.where(length > 0, length, 1)

        def bounded(leaf):
            leaf = jnp.where(jnp.abs(leaf) < SMALLEST, 0, leaf)
            # In this order: C / length may be larger than a float.
            leaf = jnp.where(short, leaf, leaf / divisor * limit)
            return jnp.where(finite, leaf, 0)

        return jax.tree.map(bounded, message), 1.0 - finite.astype(jnp.float32)

    return Bound(apply, limit, name)


def _in_float32(message: Message) -> Message:
    """Returns the message in a type whose rounding cannot lift a norm above C."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), message)
