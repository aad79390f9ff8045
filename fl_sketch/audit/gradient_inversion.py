"""Gradient inversion: inputs found again from what a client sent.

The attacker knows the model, the round's key and one client's message s. It looks for
inputs z whose own message m(z) is the one it saw: the minimum of `|m(z) - s|^2`. For
the gradient of one step and a sketch R this is `|R grad F(w, z) - R g|^2` (Song et al.,
section 7.2). `client_view` makes m from any algorithm: whatever steps, sketch,
compressor and bound lie between the images and the message, the attacker can compute
them too, and differentiates through them.

Noise is not in m, local noise neither: give `client_view` the algorithm without it.
The dither of a client (QSGD) is known to this attacker, who is in that stronger than a
real one. What the attacker sees with a mechanism is the bounded message and the noise
of the release, as if it knew everyone else's message and had taken them out of the
sum: the strongest attacker that a client-level promise speaks of.
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
PATIENCE = 3  # iterations without a gain, after which a search may be over


class Found(NamedTuple):
    """What an attack came to.

    Attributes:
      inputs: the best inputs found.
      mismatch: the mismatch of their messages, `|m(z) - s|^2 / |s|^2`.
      value: the least value of what was minimised: the mismatch, and if there is a
        prior, what it says of the inputs as well.
      curve: the values of all iterations, shape=(steps,).
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
    """Returns inputs -> the first message of a client that has never been drawn.

    Args:
      algorithm: the client's algorithm; a mechanism's bound is part of the message.
      server: what clients fetch.
      keys: the keys of the round. An attacker who does not know the hashes has others.
      batches: inputs -> what the client trains on, labels included.
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
    """Returns a message as it is seen when all other clients' are known.

    Under a mechanism it has the whole noise of the sum.

    Args:
      algorithm: the algorithm, with noise.
      message: what the client sent, bounded and without noise.
      keys: the keys of the round, from which the noise follows.

    Raises:
      ValueError: for a mechanism whose noise is none of the server's, or whose
        threshold adapts.
    """
    if algorithm.mechanism is None:
        return message
    guard = algorithm.mechanism.init()
    release = algorithm.mechanism.release(guard, 0, message, keys)
    if "signal_energy" not in release.facts or jax.tree.leaves(guard):
        msg = "Expected a mechanism with central noise and a fixed threshold to attack."
        raise ValueError(msg)
    # What is released is (sum + noise) / r.
    size = optax.tree.norm(message) / jnp.sqrt(release.facts["signal_energy"])
    return jax.tree.map(lambda leaf: leaf * size, release.mean)


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
    """Returns the inputs whose message comes nearest to the one that was seen.

    To be jitted, and mapped over images and starts.

    Args:
      view: inputs -> message.
      seen: the message.
      start: inputs to begin from; they need not be in [0, 1].
      optimizer: "gd", plain gradient descent as the theorem has it; "adam"; "lbfgs".
      steps: the number of iterations.
      rate: the rate of gd and adam; lbfgs searches along lines.
      smoothness: the weight of the total variation of images, a prior.

    Raises:
      ValueError: for another optimizer, or no step.
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
    """Returns (inputs -> their message as one vector, that -> its mismatch).

    The mismatch of a message m is `|m - s|^2 / |s|^2` beside the one that was `seen`.
    The `view` is traced once, though line searches ask for it in many places.
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
      value: a point -> what is to be small.
      start: the point to begin from.
      optimizer: one of `OPTIMIZERS`.
      steps: the number of iterations.
      rate: the rate of gd and adam.
      least_gain: the part of the least value by which it must fall; after `PATIENCE`
        iterations of less the search is over, and the value stays. At the bottom a
        line search takes longest, and finds nothing. 0: it goes on to the end.

    Raises:
      ValueError: for another optimizer, or no step.
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
    """Returns the optimizer of that name."""
    if optimizer == "lbfgs":
        return optax.lbfgs(memory_size=20)
    return optax.sgd(rate) if optimizer == "gd" else optax.adam(rate)


def best_of(found: Found) -> Found:
    """Returns the one of least value of what was `found` from several starts.

    These stand along a leading axis of all its arrays.
    """
    return jax.tree.map(lambda leaf: leaf[jnp.argmin(found.value)], found)


def total_variation(images: jax.Array) -> jax.Array:
    """Returns the mean absolute difference of neighbouring pixels, rounded at zero.

    Args:
      images: the images, NHWC.
    """
    down, right = jnp.diff(images, axis=1), jnp.diff(images, axis=2)
    # |x| has no second derivative at zero, which line searches meet.
    return sum(jnp.mean(jnp.sqrt(d**2 + 1e-6)) for d in (down, right))  # pyright: ignore[reportReturnType]


def label_of_bias(bias_gradient: jax.Array) -> jax.Array:
    """Returns the label of a single example from the last layer's bias gradient.

    With cross-entropy `bias_gradient`, one number for each class, is softmax minus
    one-hot: negative at the label alone.
    """
    return jnp.argmin(bias_gradient)


def input_of_dense(kernel_gradient: jax.Array, bias_gradient: jax.Array) -> jax.Array:
    """Returns the input of a first dense layer, exactly: dW / db at the largest `|db|`.

    Args:
      kernel_gradient: an array of (inputs, outputs), of a single example.
      bias_gradient: an array of (outputs,), of the same example.
    """
    row = jnp.argmax(jnp.abs(bias_gradient))
    return kernel_gradient[:, row] / bias_gradient[row]


def starts(key: jax.Array, shape: Sequence[int], count: int) -> jax.Array:
    """Returns images of uniform noise in [0, 1] to begin from.

    Args:
      key: the attacker's key.
      shape: the shape of a start, which has all images that are looked for together.
      count: the number of starts, along a leading axis.
    """
    return jax.random.uniform(key, (count, *shape))
