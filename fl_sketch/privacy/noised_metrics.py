"""Private numbers to look at: the cohort's loss and accuracy, clipped, summed, noised.

Metrics on the clients' own data are private, so the curves of a private run could only
show test data. Here each client adds a few clipped numbers to its first message of a
round. The message and these numbers together cost as much as one release with z, since
the noise of the message is slightly larger.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch.privacy import clipping, mechanism
>>> guard = watching(
...     lambda z: mechanism.central(
...         clipping.clip(1.0), noise_multiplier=z, denominator=2
...     ),
...     {"accuracy": (0.0, 1.0)},
...     noise_multiplier=0.0,
...     noise=1.0,
... )
>>> one = guard.encode((), 0, (jnp.ones(1), {"accuracy": jnp.float32(0.75)}), None)
>>> two = guard.encode((), 0, (jnp.ones(1), {"accuracy": jnp.float32(0.25)}), None)
>>> total = jax.tree.map(jnp.add, one.summand, two.summand)
>>> guard.release((), 0, total, None).released
{'noised_accuracy': Array(0.5, dtype=float32)}
"""

import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Encoded, Mechanism
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.privacy import clipping, gaussian


def watching(
    make: Callable[[float], Mechanism],
    ranges: Mapping[str, tuple[float, float]],
    *,
    noise_multiplier: float,
    noise: float,
) -> Mechanism:
    """Returns a mechanism that also releases means of what clients measure.

    A number is cut to its range and mapped to [-1/2, 1/2]; k of them move a sum by at
    most sqrt(k)/2. What is released as "noised_NAME" is the sum with its noise over the
    fixed denominator, mapped back. A rejected message counts as the middle of a range.

    Args:
      make: `(z) -> Mechanism`, for the noise multiplier that is left for messages.
      ranges: the range (low, high) of each watched diagnostic, by name.
      noise_multiplier: the multiplier z of messages and numbers together.
      noise: standard deviation of the noise on the sum of mapped numbers.
    """
    _require_ranges(ranges)
    inner = make(_of_messages(noise_multiplier, noise, len(ranges)))
    names = tuple(ranges)
    low, high = (jnp.array([ranges[name][end] for name in names]) for end in (0, 1))
    scale = noise if noise_multiplier else 0.0

    def encode(state, exchange, message, keys):
        if exchange:
            return inner.encode(state, exchange, message, keys)
        message, seen = message
        bounded = inner.encode(state, exchange, message, keys)
        values = jnp.stack([seen[name] for name in names])
        shares = (jnp.clip(values, low, high) - low) / (high - low) - 0.5
        shares = jnp.where(jnp.isnan(shares) | (bounded.rejected > 0), 0, shares)
        return Encoded((bounded.summand, shares), bounded.rejected)

    def release(state, exchange, total, keys):
        if exchange:
            return inner.release(state, exchange, total, keys)
        total, shares = total
        if scale:
            key = apart(keys.server, Purpose.NOISE)
            hidden = gaussian.noise(apart(key, Purpose.WATCHED), shares, scale)
            shares = gaussian.on_grid(shares + hidden, scale)
        means = (shares / inner.denominator + 0.5) * (high - low) + low
        found = {f"noised_{n}": m for n, m in zip(names, means, strict=True)}
        released = inner.release(state, exchange, total, keys)
        return released._replace(released=released.released | found)

    return inner._replace(
        encode=encode,
        release=release,
        noise_multiplier=noise_multiplier,
        watched=names,
        wire=lambda bits, numbers: inner.wire(bits, numbers) + FLOAT_BITS * len(names),
        extra=inner.extra + len(names),
        trailing=(*inner.trailing, "float"),
    )


def _require_ranges(ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises a ValueError for what is no range of numbers."""
    for name, (low, high) in ranges.items():
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            msg = f"Expected a range low < high of {name}, got ({low}, {high})."
            raise ValueError(msg)


def _of_messages(noise_multiplier: float, noise: float, count: int) -> float:
    """Returns the noise multiplier of messages that so many numbers go with."""
    validate.in_range(0, math.inf, noise=noise)
    each = noise / math.sqrt(count)
    if noise_multiplier >= 2 * each > 0:
        least = noise_multiplier * math.sqrt(count) / 2
        msg = f"Expected noise > {least:.4g} on the watched metrics, got noise={noise}."
        raise ValueError(msg)
    return clipping.split_noise(noise_multiplier, each)
