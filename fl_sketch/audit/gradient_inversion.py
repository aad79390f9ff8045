"""Gradient inversion: inputs recovered from what a client sent.

The attacker knows the model, the round's key and one client's message s, and looks for
inputs z whose own message m(z) equals it: the minimum of `|m(z) - s|^2`. For the
gradient of one step and a sketch R this is `|R grad F(w, z) - R g|^2` (Song et al.,
section 7.2). `client_view` makes m from any algorithm. The attacker can compute every
step, sketch, compressor and bound between the images and the message, and
differentiates through them.

Noise is not in m: give `client_view` the algorithm without it, local noise included.
This attacker also knows the dither of a client (QSGD), which a real one does not. With
a mechanism the attacker sees the bounded message with the noise of the release, as if
it knew every other message and had subtracted them from the sum: the strongest attacker
that a client-level guarantee covers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.channels import player
from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import Algorithm, Keys, Message, Round, Server

View = Callable[[jax.Array], Message]  # inputs -> the message of a client that has them
OPTIMIZERS = ("gd", "adam", "lbfgs")
PATIENCE = 3  # iterations without a gain, after which a search may end


class Found(NamedTuple):
    """The result of an attack.

    Attributes:
      inputs: the best inputs.
      mismatch: the mismatch of their message, `|m(z) - s|^2 / |s|^2`.
      value: the least value of the objective: the mismatch, and the prior if any.
      curve: the objective in every iteration, shape=(steps,).
    """

    inputs: jax.Array
    mismatch: jax.Array
    value: jax.Array
    curve: jax.Array


def client_view(
    algorithm: Algorithm,
    server: Server,
    keys: Keys,
    batches: Callable[[jax.Array], Any],
) -> View:
    """Returns inputs -> the first message of a client in its first round.

    Args:
      algorithm: the client's algorithm; the bound of its mechanism is applied.
      server: what clients download.
      keys: the keys of the round, or others if the attacker does not know the hashes.
      batches: inputs -> the client's batches, labels included.
    """

    def view(inputs):
        params = server.params
        memory = algorithm.uplink.init(params)
        state = algorithm.local.init(params)
        work = algorithm.local.run(server, state, batches(inputs), keys)
        arguments = (work.update, memory, keys, Round(server.round))
        message = player.message(player.play(algorithm.uplink, arguments).sent)
        if algorithm.mechanism is None:
            return message
        guard = algorithm.mechanism.init()
        return algorithm.mechanism.encode(guard, 0, message, keys).summand

    return view


def released(algorithm: Algorithm, message: Message, keys: Keys) -> Message:
    """Returns a message with the whole noise of the sum, as if all others were known.

    Args:
      algorithm: the algorithm, with noise; without a mechanism there is none.
      message: the bounded message of the client, without noise.
      keys: the keys of the round, which decide the noise.

    Raises:
      ValueError: for distributed noise or an adaptive threshold.
    """
    if algorithm.mechanism is None:
        return message
    guard = algorithm.mechanism.init()
    release = algorithm.mechanism.release(guard, 0, message, keys)
    if "signal_energy" not in release.facts or jax.tree.leaves(guard):
        msg = "Expected a mechanism with central noise and a fixed threshold to attack."
        raise ValueError(msg)
    # The release is (sum + noise) / r.
    r = optax.tree.norm(message) / jnp.sqrt(release.facts["signal_energy"])
    return jax.tree.map(lambda leaf: leaf * r, release.mean)


def invert(
    view: View,
    seen: Message,
    start: jax.Array,
    *,
    optimizer: str = "lbfgs",
    steps: int = 300,
    rate: float = 0.1,
    smoothness: float = 0.0,
) -> Found:
    """Returns the inputs whose message is nearest to the one that was `seen`.

    It can be jitted, and mapped over images and starts.

    Args:
      view: inputs -> message.
      seen: the message.
      start: the first inputs, which need not be in [0, 1].
      optimizer: "gd", plain gradient descent as in the theorem; "adam"; "lbfgs".
      steps: the number of iterations.
      rate: the rate of gd and adam; lbfgs searches along lines.
      smoothness: the weight of the total variation of images, a prior.
    """
    view, off = compared(view, seen)

    def value(inputs):
        if smoothness == 0:
            return off(view(inputs))
        return off(view(inputs)) + smoothness * total_variation(inputs)

    best, least, curve = minimised(
        value, start, optimizer=optimizer, steps=steps, rate=rate
    )
    return Found(best, off(view(best)), least, curve)


def compared(view: View, seen: Message) -> tuple[View, Callable[[jax.Array], Any]]:
    """Returns (inputs -> their message as one vector, message -> its mismatch).

    The mismatch of m with the message s that was `seen` is `|m - s|^2 / |s|^2`. The
    `view` is traced once, although line searches call it in many places.
    """
    traced_once = jax.jit(lambda inputs: trees.ravel(view(inputs)), inline=True)
    target = trees.ravel(seen)
    scale = jnp.maximum(jnp.sum(target**2), jnp.finfo(jnp.float32).tiny)
    return traced_once, lambda message: jnp.sum((message - target) ** 2) / scale


def minimised(
    value: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    *,
    optimizer: str,
    steps: int,
    rate: float,
    least_gain: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the best point of a search, its value, and the value in every iteration.

    Args:
      value: the objective, a function of a point.
      start: the first point.
      optimizer: one of `OPTIMIZERS`.
      steps: the number of iterations.
      rate: the rate of gd and adam.
      least_gain: the search ends after `PATIENCE` iterations that reduce the least
        value by a smaller part, since line searches take longest at the bottom. 0: it
        never ends early.
    """
    validate.one_of(OPTIMIZERS, optimizer=optimizer)
    validate.at_least_one(steps=steps)
    tx = _transformation(optimizer, rate)

    def step(carry, _) -> tuple[Any, Any]:
        point, state, best, least, calm = carry
        if optimizer == "lbfgs":
            now, grads = optax.value_and_grad_from_state(value)(point, state=state)
            more = {"value": now, "grad": grads, "value_fn": value}
        else:
            (now, grads), more = jax.value_and_grad(value)(point), {}
        updates, state = tx.update(grads, state, point, **more)
        gained = now < least - least_gain * jnp.abs(least)
        calm = jnp.where(gained | jnp.isinf(least), 0, calm + 1)
        better = now < least
        best = jnp.where(better, point, best)
        least = jnp.where(better, now, least)
        moved = optax.apply_updates(point, updates)
        # A line search that finds nothing leaves NaN: the attack ends there.
        point = trees.if_finite(moved, point)
        return (point, state, best, least, calm), now

    def step_or_rest(carry, _):
        *_, least, calm = carry
        if not least_gain:
            return step(carry, None)
        over = calm >= PATIENCE
        return jax.lax.cond(over, lambda c: (c, least), lambda c: step(c, None), carry)

    carry = start, tx.init(start), start, jnp.float32(jnp.inf), jnp.int32(0)
    (last, _, best, least, _), curve = jax.lax.scan(step_or_rest, carry, length=steps)
    end = value(last)
    best = jnp.where(end < least, last, best)
    return best, jnp.fmin(end, least), curve


def _transformation(optimizer: str, rate: float):
    if optimizer == "lbfgs":
        return optax.lbfgs(memory_size=20)
    return optax.sgd(rate) if optimizer == "gd" else optax.adam(rate)


def best_of(found: Found) -> Found:
    """Returns the result of least value among several along a leading axis."""
    return jax.tree.map(lambda leaf: leaf[jnp.argmin(found.value)], found)


def total_variation(images: jax.Array) -> jax.Array:
    """Returns the mean absolute difference of neighbouring pixels of `images`, NHWC.

    The absolute value is smooth at zero, since line searches need second derivatives.
    """
    down, right = jnp.diff(images, axis=1), jnp.diff(images, axis=2)
    return sum(jnp.mean(jnp.sqrt(d**2 + 1e-6)) for d in (down, right))  # pyright: ignore[reportReturnType]


def starts(key: jax.Array, shape: Sequence[int], count: int) -> jax.Array:
    """Returns `count` starts of uniform noise in [0, 1], each of this shape."""
    return jax.random.uniform(key, (count, *shape))
