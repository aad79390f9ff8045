"""Where a mechanism stands between the clients' messages and their mean.

Without one a message is its own summand and the mean is the weighted sum over the
cohort's denominator. With one, what a client adds to any sum is what `bound` leaves of
its message, and what anybody sees of the sum is what `release` makes of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.core.protocols import Bounded, Keys, Mechanism, Message, Release, Round
from fl_sketch.engine.mesh import AXIS


class Guard(NamedTuple):
    """What a device does with messages and sums of a round.

    Attributes:
      weights: the weights with which its clients count.
      round: the description of the round that their talks are given.
      adds_first: whether only sums are looked at, so that a linear map may come later.
      bound: `(exchange, message, keys, diagnostics) -> Bounded`, by one client.
      seen: `(bounded, diagnostics) -> diagnostics` of a client that was counted.
      release: `(exchange, total, state) -> Release`, of the sum over all devices.
      averaged: `(sums of diagnostics, rejected) -> means` of them.
    """

    weights: jax.Array
    round: Round
    adds_first: bool
    bound: Callable[[int, Message, Keys, dict], Bounded]
    seen: Callable[[Bounded, dict], dict]
    release: Callable[[int, Bounded, Any], Release]
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
        bound=lambda exchange, message, keys, diagnostics: Bounded(message, ()),
        seen=lambda bounded, diagnostics: diagnostics,
        release=release,
        averaged=averaged,
    )


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

    def bound(exchange, message, keys, diagnostics):
        told = mechanism.told(exchange, message, diagnostics)
        return mechanism.bound(view, exchange, told, keys)

    def seen(bounded, diagnostics):
        def counted(value):
            return jnp.where(bounded.rejected > 0, 0, value)

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
        bound=bound,
        seen=seen,
        release=release,
        averaged=averaged,
    )
