"""Where a mechanism stands between the clients' messages and their mean.

Without one a message is its own summand and the mean is the weighted sum over the
cohort's denominator. With one, what a client adds to any sum is what `encode` makes of
its message, and what anybody sees of the sum is what `release` makes of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.core.protocols import Encoded, Keys, Mechanism, Message, Release, Round
from fl_sketch.engine.mesh import AXIS


class Guard(NamedTuple):
    """What a device does with messages and sums of a round.

    Attributes:
      weights: the weights with which its clients count.
      round: the description of the round that their talks are given.
      adds_first: whether only sums are looked at, so that a linear map may come later.
      encode: `(exchange, message, keys, diagnostics) -> Encoded`, by one client.
      seen: `(encoded, diagnostics) -> diagnostics` of a client that was counted.
      release: `(exchange, total, state) -> Release`, of the sum over all devices.
      averaged: `(sums of diagnostics, rejected) -> means` of them.
    """

    weights: jax.Array
    round: Round
    adds_first: bool
    encode: Callable[[int, Message, Keys, dict], Encoded]
    seen: Callable[[Encoded, dict], dict]
    release: Callable[[int, Encoded, Any], Release]
    averaged: Callable[[dict, Any], dict]


def open_mean(
    weights: jax.Array,
    denominator: jax.Array,
    population: jax.typing.ArrayLike,
    number: jax.typing.ArrayLike,
) -> Guard:
    """Returns no guard: weighted means of the messages as they are.

    Args:
      weights: the weights of the device's clients.
      denominator: the cohort's.
      population: the weight of all clients.
      number: the round's.
    """
    present = jax.lax.psum(jnp.sum(weights), AXIS)

    def release(exchange, total, state):
        del exchange
        mean = jax.tree.map(lambda t: t / denominator, total.summand)
        return Release(mean, state, {})

    def averaged(sums, rejected):
        del rejected
        # Of those who took part, whatever the denominator of the messages.
        scale = denominator / jnp.maximum(present, 1e-9)
        return jax.tree.map(lambda total: total / denominator * scale, sums)

    return Guard(
        weights=weights,
        round=Round(
            number, denominator=denominator, present=present, population=population
        ),
        adds_first=True,
        encode=lambda exchange, message, keys, diagnostics: Encoded(
            jax.tree.map(_as_float, message), ()
        ),
        seen=lambda encoded, diagnostics: diagnostics,
        release=release,
        averaged=averaged,
    )


def _as_float(leaf: jax.Array) -> jax.Array:
    """Returns numbers that may be weighted."""
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def guarded(
    mechanism: Mechanism,
    view: Any,
    weights: jax.Array,
    keys: Keys,
    population: jax.typing.ArrayLike,
    number: jax.typing.ArrayLike,
) -> Guard:
    """Returns a mechanism's guard, with which all clients count alike.

    Args:
      mechanism: the mechanism.
      view: the mechanism's state, as clients see it.
      weights: the weights of the device's clients; zero: not taking part.
      keys: the keys of the round, those of anyone.
      population: the weight of all clients.
      number: the round's.
    """
    weights = (weights > 0).astype(weights.dtype)
    present = jax.lax.psum(jnp.sum(weights), AXIS)

    def encode(exchange, message, keys, diagnostics):
        told = mechanism.told(exchange, message, diagnostics)
        return mechanism.encode(view, exchange, told, keys)

    def seen(encoded, diagnostics):
        def counted(value):
            return jnp.where(encoded.rejected > 0, 0, value)

        return jax.tree.map(counted, diagnostics)

    def release(exchange, total, state):
        released = mechanism.release(state, exchange, total.summand, keys)
        return released._replace(facts=released.facts | {"rejected": total.rejected})

    def averaged(sums, rejected):
        kept = jnp.maximum(present - rejected, 1e-9)
        return jax.tree.map(lambda total: total / kept, sums)

    expected = mechanism.denominator
    return Guard(
        weights=weights,
        round=Round(
            number,
            counted=lambda message: mechanism.bounded(view, message).summand,
            denominator=expected,
            present=expected,
            population=population,
        ),
        adds_first=False,
        encode=encode,
        seen=seen,
        release=release,
        averaged=averaged,
    )
