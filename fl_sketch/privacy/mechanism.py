"""Mechanisms: bound every message, add one draw of noise to the sum, divide by r.

Any algorithm becomes private by `algorithm._replace(mechanism=...)`: what is bounded is
the message that leaves a client, after sketches, compressors and memories, since none
of these keeps an l2 bound. Every exchange of a round is guarded, and is a release.

Formal guarantees, for each exchange of a cohort without repeated clients:

- one client changes the sum by at most C, whatever its data, NaN included;
- the noise has standard deviation z C in every number of the sum, is drawn once, from
  the server's key, and is the same on all devices;
- the denominator is fixed: with a mean over the clients that took part, one client
  could change the weight of all others, and the sum by up to 2C;
- a message whose norm is not finite becomes zero, and is counted.

A mechanism does not hide diagnostics, which the engine returns for the simulator alone.
`gaussian` describes the error of float32. Of integers it is zero, and clients may add
shares of the noise (`integers`).

>>> import jax, jax.numpy as jnp
>>> from fl_sketch.privacy import clipping
>>> norm = central(clipping.clip(1.0), noise_multiplier=0.0, denominator=2)
>>> one = norm.encode((), 0, jnp.array([3.0, 4.0]), None)
>>> norm.release((), 0, one.summand, None).mean
Array([0.3, 0.4], dtype=float32)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.keys import Purpose
from fl_sketch.core.protocols import Encoded, Key, Mechanism, Message, Release
from fl_sketch.privacy import clipping, gaussian
from fl_sketch.privacy.clipping import Bound
from fl_sketch.privacy.integer_sums import integers as integers  # also a mechanism


def central(bound: Bound, *, noise_multiplier: float, denominator: float) -> Mechanism:
    """Returns the Gaussian mechanism with a trusted server: one draw on the sum."""
    clipping.require_noise(bound, noise_multiplier, denominator)
    # Without noise the threshold may be infinite.
    scale = noise_multiplier * bound.limit if noise_multiplier else 0.0
    bounded = clipping.bounded(bound)

    def encode(state, exchange, message, keys):
        del exchange, keys
        return bounded(state, message)

    def release(state, exchange, total, keys):
        noise = _noise(keys and keys.server, exchange, total, scale)
        return _released(total, noise, scale, denominator, state)

    return Mechanism(
        tuple,
        bounded,
        encode,
        release,
        noise_multiplier,
        denominator,
        description=("central", bound.name, bound.limit),
    )


def adaptive(
    start: jax.typing.ArrayLike,
    *,
    noise_multiplier: float,
    denominator: float,
    quantile: float = 0.5,
    rate: float = 0.2,
    count_noise: float,
) -> Mechanism:
    """Returns clipping whose threshold tracks a quantile of the messages' norms.

    b_i = 1 if message i is no longer than C; the noisy share of these moves the
    threshold: `C *= exp(-rate (share - quantile))`. The count is a second thing given
    away, paid for by noise on the sum of z_delta C with z_delta > z, so that a round
    costs what one release with z does (`clipping.split_noise`). For algorithms of
    one exchange: the messages of a second have lengths of their own.

    Args:
      start: the threshold C of the first round.
      noise_multiplier: the multiplier z of both together.
      denominator: the fixed number r of expected clients.
      count_noise: the standard deviation s_b of the noise on the sum of b_i - 1/2;
        about r / 20.

    Reference: Andrew et al. (2021), Algorithm 1.
    """
    clipping.require_noise(clipping.clip(start), noise_multiplier, denominator)
    validate.in_range(0, 1, quantile=quantile)
    validate.in_range(0, math.inf, rate=rate, count_noise=count_noise)
    left = clipping.split_noise(noise_multiplier, count_noise)

    def encode(state, exchange, message, keys):
        del keys
        if exchange:
            msg = "Expected one exchange per round with bound=adaptive, got a second."
            raise ValueError(msg)
        bounded, rejected = clipping.clip(state).apply(message)
        short = (clipping.norm(message) <= state) | (rejected > 0)
        return Encoded((bounded, short.astype(jnp.float32) - 0.5), rejected)

    def release(state, exchange, total, keys):
        total, count = total
        scale, count_scale = left * state if left else 0, count_noise if left else 0
        noise = _noise(keys.server, exchange, total, scale)
        hidden = _noise(keys.server, Purpose.THRESHOLD, count, count_scale)
        share = _on_grid(count + hidden, count_scale) / denominator + 0.5
        after = state * jnp.exp(-rate * (share - quantile))
        released = _released(total, noise, scale, denominator, after)
        return released._replace(released={"threshold": state})

    return Mechanism(
        lambda: jnp.float32(start),
        lambda state, message: clipping.bounded(clipping.clip(state))(state, message),
        encode,
        release,
        noise_multiplier,
        denominator,
        wire=lambda bits, numbers: bits + 1,
        extra=1,
        trailing=("half",),
        description=("central", "adaptive", start),
    )


def _released(total, noise, scale, denominator: float, state: Any) -> Release:
    """Returns the release of a sum, with its energies."""
    noisy = _on_grid(jax.tree.map(jnp.add, total, noise), scale)
    mean = jax.tree.map(lambda leaf: leaf / denominator, noisy)
    square = float(denominator) ** 2  # of an int it may be none of 32 bits
    facts = {
        "signal_energy": _energy(total) / square,
        "noise_energy": _energy(noise) / square,
    }
    return Release(mean, state, facts)


def _noise(key: Key | None, exchange: int, like: Message, scale) -> Message:
    """Returns normal numbers of this standard deviation, float32, shaped like another.

    The exchange is folded in, so that no two of a round share a draw.
    """
    if validate.is_off(scale):
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), like)
    assert key is not None  # it may be missing where there is no noise
    key = jax.random.fold_in(jax.random.fold_in(key, Purpose.NOISE), exchange)
    return gaussian.noise(key, like, scale)


def _on_grid(message: Message, scale) -> Message:
    return message if validate.is_off(scale) else gaussian.on_grid(message, scale)


def _energy(tree: Message) -> jax.Array:
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))  # pyright: ignore[reportReturnType]
