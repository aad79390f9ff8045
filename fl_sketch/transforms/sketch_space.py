"""Memory in sketch space: momentum and error of the size of a message.

Such memory adds up the messages of many rounds, so one map must have made them all:
these transforms require an operator made by `sketch.fixed_key`. FetchSGD is::

  chain(sketch(op), aggregate(axis), in_sketch_space(optax.trace(0.9), op),
        optax.scale(learning_rate), top_k_desketch(op, k), optax.scale(-1))
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import Message, Sketch
from fl_sketch.sketch import compressors
from fl_sketch.transforms.pipeline import NEED_PARAMS, require

FORGET = ("subtract", "zero")


def in_sketch_space(
    tx: optax.GradientTransformation, op: Sketch
) -> optax.GradientTransformationExtraArgs:
    """Runs `tx` on messages instead of updates, with state of the message's shape.

    Args:
      tx: a transformation that does not read params, such as `optax.trace`.
    """
    _require_fixed_key(op)
    tx = optax.with_extra_args_support(tx)

    def update(updates, state, params=None, **extra_args):
        del params  # of another shape than the messages
        return tx.update(updates, state, None, **extra_args)

    return optax.GradientTransformationExtraArgs(
        lambda params: tx.init(op.zeros(params)), update
    )


class TopKDesketchState(NamedTuple):
    """The sum of what was received and not yet applied, as a message."""

    error: Message


def top_k_desketch(
    op: Sketch, k: int, forget: str = "zero"
) -> optax.GradientTransformationExtraArgs:
    """Applies the k heaviest coordinates of error + message; the rest stays.

    Args:
      k: the number of coordinates that an update changes.
      forget: how the error forgets what was applied. "zero": every number of the error
        that its sketch touches becomes zero (the code released with the paper).
        "subtract": its sketch is subtracted (the paper, FetchSGD Algorithm 1, "error
        accumulation"); errors then grow without end for many k.
    """
    _require_fixed_key(op)
    keep_top = compressors.top_k(k)
    validate.one_of(FORGET, forget=forget)

    def init(params):
        validate.at_most(trees.size(params), "the numbers of the parameters", k=k)
        return TopKDesketchState(op.zeros(params))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        params = require(params, NEED_PARAMS)
        error = jax.tree.map(jnp.add, state.error, updates)
        heaviest, applied = _heaviest(op, keep_top, error, params)
        return heaviest, TopKDesketchState(_without(error, applied, forget))

    return optax.GradientTransformationExtraArgs(init, update)


class FetchState(NamedTuple):
    """FetchSGD's memory at the server, all in sketch space.

    Attributes:
      momentum: the momentum u, a message.
      errors: the errors e, messages along a leading axis of windows: one that is never
        emptied, or several.
      count: the number of steps, int32 [].
    """

    momentum: Message
    errors: Message
    count: jax.Array


def fetchsgd(
    op: Sketch,
    k: int,
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: jax.typing.ArrayLike = 0.9,
    forget: str = "zero",
    masking: bool = False,
    window: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """FetchSGD's server: from mean sketches to the step of the model.

    Algorithm 1: momentum u = rho u + S and error e += eta u in sketch space. The k
    heaviest coordinates of e are the step, and leave e ("error accumulation").

    Args:
      k: the number of coordinates that a step changes.
      learning_rate: the rate eta, or a schedule of it.
      momentum: the decay rho of the momentum.
      forget: how a step is removed from the error, as in `top_k_desketch`.
      masking: whether the momentum forgets as well, where the step's sketch is not
        zero (the released code: momentum factor masking).
      window: the number of rounds of which errors are kept; 0: all. Each round of the
        window has its own error; the oldest is read and cleared (the paper's sliding
        window, on which its second theorem rests).

    Reference: Rothchild et al. (2020), Algorithm 1 and Appendix B.
    """
    _require_fixed_key(op)
    validate.one_of(FORGET, forget=forget)
    validate.in_range(0, 2**16, window=window)
    keep_top = compressors.top_k(k)
    rate = learning_rate if callable(learning_rate) else lambda count: learning_rate

    def init(params):
        validate.at_most(trees.size(params), "the numbers of the parameters", k=k)
        zeros = op.zeros(params)
        errors = jax.tree.map(lambda z: jnp.stack([z] * max(1, window)), zeros)
        return FetchState(zeros, errors, jnp.int32(0))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        params = require(params, NEED_PARAMS)
        moved = jax.tree.map(lambda u, s: momentum * u + s, state.momentum, updates)
        now = state.count % max(1, window)
        errors = jax.tree.map(
            lambda e, u: e + rate(state.count) * u, state.errors, moved
        )
        oldest = jax.tree.map(lambda e: e[now], errors)
        step, applied = _heaviest(op, keep_top, oldest, params)
        errors = _without(errors, applied, forget)
        if window:
            errors = jax.tree.map(lambda e: e.at[now].set(0), errors)
        if masking:
            moved = _without(moved, applied, "zero")
        step = jax.tree.map(jnp.negative, step)
        return step, FetchState(moved, errors, state.count + 1)

    return optax.GradientTransformationExtraArgs(init, update)


def _heaviest(op: Sketch, keep_top, error: Message, params):
    """Returns (the heaviest coordinates of a message's update, their sketch)."""
    key = jax.random.key(0)  # not used: the operator has its own
    estimate = trees.ravel(op.estimate(key, error, params))
    heaviest = trees.unraveler(params)(keep_top.apply(key, estimate))
    return heaviest, op.apply(key, heaviest)


def _without(message: Message, applied: Message, forget: str) -> Message:
    if forget == "subtract":
        return jax.tree.map(jnp.subtract, message, applied)
    return jax.tree.map(lambda e, a: jnp.where(a == 0, e, 0), message, applied)


def _require_fixed_key(op: Sketch) -> None:
    if not op.fixed_key:
        msg = (
            "Expected a sketch with a fixed key, since its memory adds messages of "
            "different rounds, got one with a new key per round: pass "
            "sketch.fixed_key(op, key)."
        )
        raise ValueError(msg)
