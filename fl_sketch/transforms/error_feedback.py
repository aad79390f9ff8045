"""What a compressor leaves out, kept and added to the next update; or changes only."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees
from fl_sketch.core.protocols import Compressor, Tree
from fl_sketch.transforms.pipeline import NEED_KEY, require


def compress(compressor: Compressor) -> optax.GradientTransformationExtraArgs:
    """Replaces an update by what the receiver of its compressed message makes of it.

    Args:
      compressor: a compressor, applied to the whole update as one vector.
    """

    def update(updates, state, params=None, *, key=None, **extra_args):
        del params, extra_args
        vector = trees.ravel(updates)
        seen = compressor.apply(require(key, NEED_KEY), vector)
        return trees.unraveler(updates)(seen), state

    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), update
    )


class ErrorFeedbackState(NamedTuple):
    """What has not been sent yet, and the state of the transformation inside.

    Attributes:
      error: the sum of what was left out, like the parameters; one for each client.
      inner: the state of the transformation that was wrapped.
    """

    error: Tree
    inner: optax.OptState


def error_feedback(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Adds to each update what `tx` left out of the earlier ones.

    Formal guarantee: sum of outputs + error = sum of inputs, after every round. The
    error stays bounded if `tx` is a contraction: top-k, scaled sign, random-k
    without its factor d/k. An unbiased sketch, R^T R, is not one: its error grows.
    An update that is not finite leaves the error as it was.

    The memory belongs to one client. Inside `shard_map` that part of the state has
    to be sharded over the devices, not replicated.

    Args:
      tx: a transformation of updates to updates of the same shape, such as
        `compress(top_k(k))` or `chain(sketch(op), desketch(op))`.
    """
    tx = optax.with_extra_args_support(tx)

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return ErrorFeedbackState(zeros, tx.init(params))

    def update(updates, state, params=None, **extra_args):
        owed = jax.tree.map(jnp.add, updates, state.error)
        sent, inner = tx.update(owed, state.inner, params, **extra_args)
        left = jax.tree.map(jnp.subtract, owed, sent)
        error = trees.if_finite(left, state.error)
        return sent, ErrorFeedbackState(error, inner)

    return optax.GradientTransformationExtraArgs(init, update)


class KnownState(NamedTuple):
    """What the receivers have made of all messages so far.

    Attributes:
      known: the sum of what was sent, like the parameters.
    """

    known: Tree


def changes(compressor: Compressor) -> optax.GradientTransformationExtraArgs:
    """Turns updates into compressed changes since what is known of them (Markov, EF21).

    Args:
      compressor: a contraction, applied to the whole change as one vector.
    """

    def update(updates, state, params=None, *, key=None, **extra_args):
        del params, extra_args
        change = trees.ravel(jax.tree.map(jnp.subtract, updates, state.known))
        seen = compressor.apply(require(key, NEED_KEY), change)
        seen = trees.unraveler(updates)(seen)
        return seen, KnownState(jax.tree.map(jnp.add, state.known, seen))

    return optax.GradientTransformationExtraArgs(_nothing_known, update)


def accumulate() -> optax.GradientTransformation:
    """Adds updates up: what comes out is the sum of all that came in."""

    def update(updates, state, params=None):
        del params
        known = jax.tree.map(jnp.add, state.known, updates)
        return known, KnownState(known)

    return optax.GradientTransformation(_nothing_known, update)


def difference(compressor: Compressor) -> optax.GradientTransformationExtraArgs:
    """Sends the change of the updates since what is known of them (Markov, EF21).

    The receivers add up what was sent; what comes out is what they then have.

    Args:
      compressor: a contraction, applied to the whole change as one vector.
    """
    return optax.chain(changes(compressor), accumulate())


def _nothing_known(params):
    return KnownState(jax.tree.map(jnp.zeros_like, params))
