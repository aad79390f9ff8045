"""Error feedback: what a compressor leaves out is added to the next update."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees
from fl_sketch.core.protocols import Compressor, Tree
from fl_sketch.transforms.pipeline import NEED_KEY, require


def compress(compressor: Compressor) -> optax.GradientTransformationExtraArgs:
    """Replaces an update by the update that its compressed message represents.

    The result has as many numbers as the update. An `aggregate` over the devices of a
    mesh averages all of them: this compresses what is computed with, and not what
    crosses the network between devices. `Compressor.compress` makes the message
    itself, of `Compressor.bits(d)` bits.
    """

    def update(updates, state, params=None, *, key=None, **extra_args):
        del params, extra_args
        vector = compressor.apply(require(key, NEED_KEY), trees.ravel(updates))
        return trees.unraveler(updates)(vector), state

    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), update
    )


class ErrorFeedbackState(NamedTuple):
    """The sum of what was left out, like the parameters, and the inner state."""

    error: Tree
    inner: optax.OptState


def error_feedback(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Adds to each update what `tx` left out of the earlier ones.

    Formal guarantee: sum of outputs + error = sum of inputs, after every round. The
    error stays bounded if `tx` is a contraction: top-k, scaled sign, random-k without
    its factor d/k. That of an unbiased sketch, R^T R, or of `sign` grows. An update
    that is not finite leaves the error as it was.

    The memory belongs to one client. Inside `shard_map` that part of the state must be
    sharded over the devices, not replicated.

    Args:
      tx: a transformation of updates to updates of the same shape, such as
        `compress(top_k(k))`.
    """
    tx = optax.with_extra_args_support(tx)

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return ErrorFeedbackState(zeros, tx.init(params))

    def update(updates, state, params=None, **extra_args):
        corrected = jax.tree.map(jnp.add, updates, state.error)
        sent, inner = tx.update(corrected, state.inner, params, **extra_args)
        chex.assert_trees_all_equal_shapes(corrected, sent)
        left = jax.tree.map(jnp.subtract, corrected, sent)
        error = trees.if_finite(left, state.error)
        return sent, ErrorFeedbackState(error, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def changes(compressor: Compressor) -> optax.GradientTransformationExtraArgs:
    """Turns updates into compressed changes of what is known of them (Markov, EF21).

    The compressor, a contraction, is applied to the whole change as one vector. The
    state is the sum of what was sent, which all receivers know.
    """

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(updates, state, params=None, *, key=None, **extra_args):
        del params, extra_args
        change = trees.ravel(jax.tree.map(jnp.subtract, updates, state))
        change = compressor.apply(require(key, NEED_KEY), change)
        change = trees.unraveler(updates)(change)
        return change, jax.tree.map(jnp.add, state, change)

    return optax.GradientTransformationExtraArgs(init, update)
