"""Where a mechanism stands between the clients' messages and their mean.

Without one a message is its own summand and the mean is the weighted sum over the
cohort's denominator. With one, what a client adds to any sum is what `bound` leaves of
its message, and what anybody sees of the sum is what `release` makes of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.protocols import Bounded, Keys, Mechanism, Release


class Guard(NamedTuple):
    """A round's mechanism, or none."""

    mechanism: Mechanism | None
    view: Any  # its state, as clients see it
    keys: Callable[[Any], Keys]  # of a client in this round
    denominator: jax.Array  # of the cohort

    @property
    def adds_first(self) -> bool:
        """Whether only the sum is looked at, so that a linear map may come after it."""
        return self.mechanism is None

    def counted(self, weights: jax.Array) -> jax.Array:
        """Returns the weights with which clients count: all alike under a mechanism."""
        if self.mechanism is None:
            return weights
        return (weights > 0).astype(weights.dtype)

    def bound(
        self, exchange: int, message: Any, client: jax.Array, diagnostics: dict
    ) -> Bounded:
        """Returns what a client adds to the sum of an exchange."""
        if self.mechanism is None:
            return Bounded(message, ())
        message = self.mechanism.told(exchange, message, diagnostics)
        return self.mechanism.bound(self.view, exchange, message, self.keys(client))

    def counts(self, message: Any) -> Any:
        """Returns what the sum counts of a client's message, before noise."""
        if self.mechanism is None:
            return message
        return self.mechanism.left(self.view, message).summand

    def divided_by(self, present: jax.Array) -> tuple[Any, Any]:
        """Returns (the mean's denominator, how many messages it says that it has)."""
        if self.mechanism is None:
            return self.denominator, present
        return (self.mechanism.denominator,) * 2

    def seen(self, bounded: Bounded, diagnostics: dict) -> dict:
        """Returns a client's diagnostics, zeros if its message was rejected."""
        if self.mechanism is None:
            return diagnostics
        return jax.tree.map(
            lambda value: jnp.where(bounded.rejected > 0, 0, value), diagnostics
        )

    def release(self, exchange: int, total: Bounded, state: Any) -> Release:
        """Returns what becomes of the sum of an exchange."""
        if self.mechanism is None:
            mean = jax.tree.map(lambda t: t / self.denominator, total.summand)
            return Release(mean, state, {})
        released = self.mechanism.release(state, exchange, total.summand, self.keys(0))
        return released._replace(facts=released.facts | {"rejected": total.rejected})

    def averaged(self, diagnostics: dict, present: jax.Array, rejected: Any) -> dict:
        """Returns means of summed diagnostics over those whose message counted."""
        if self.mechanism is None:
            # Of those who took part, whatever the denominator of the messages.
            scale = self.denominator / jnp.maximum(present, 1e-9)
            return jax.tree.map(
                lambda total: total / self.denominator * scale, diagnostics
            )
        kept = jnp.maximum(present - rejected, 1e-9)
        return jax.tree.map(lambda total: total / kept, diagnostics)
