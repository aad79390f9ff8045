"""Memory kept in sketch space: momentum and error of the size of a message.

Such memory adds up the messages of many rounds, which means something only when all
of them were made by one map; so these transforms insist on an operator made by
`sketch.fixed_key`. FetchSGD is

  chain(sketch(op), aggregate(axis), in_sketch_space(optax.trace(0.9), op),
        optax.scale(learning_rate), top_k_desketch(op, k), optax.scale(-1))
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch import compressors, trees, validate
from fl_sketch.protocols import Message, Sketch
from fl_sketch.transforms.pipeline import NEED_PARAMS, require

FORGET = ("subtract", "zero")


def in_sketch_space(
    tx: optax.GradientTransformation, op: Sketch
) -> optax.GradientTransformationExtraArgs:
    """Runs `tx` on messages instead of updates, with state of the message's shape.

    Args:
      tx: a transformation that does not look at params, such as `optax.trace`.
      op: the operator that makes the messages, made by `sketch.fixed_key`.
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
    """What was received and not yet applied, as a message."""

    error: Message  # shape=op.zeros(params).shape


def top_k_desketch(
    op: Sketch, k: int, forget: str = "subtract"
) -> optax.GradientTransformationExtraArgs:
    """Applies the k heaviest coordinates of error + message; the rest stays.

    Args:
      op: the operator that makes the messages, made by `sketch.fixed_key`.
      k: how many coordinates an update changes.
      forget: how what was applied leaves the error: "subtract" its sketch (the
        paper, FetchSGD Algorithm 1 line 13), or set to "zero" every number of the
        error that its sketch touches (the code released with the paper).
    """
    _require_fixed_key(op)
    keep_top = compressors.top_k(k)
    validate.one_of(FORGET, forget=forget)
    key = jax.random.key(0)  # not used: the operator has its own

    def init(params):
        validate.at_most(trees.size(params), "the numbers of the parameters", k=k)
        return TopKDesketchState(op.zeros(params))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        params = require(params, NEED_PARAMS)
        error = jax.tree.map(jnp.add, state.error, updates)
        estimate = trees.ravel(op.estimate(key, error, params))
        heaviest = trees.unraveler(params)(keep_top.apply(key, estimate))
        applied = op.apply(key, heaviest)
        if forget == "subtract":
            error = jax.tree.map(jnp.subtract, error, applied)
        else:
            error = jax.tree.map(lambda e, a: jnp.where(a == 0, e, 0), error, applied)
        return heaviest, TopKDesketchState(error)

    return optax.GradientTransformationExtraArgs(init, update)


def _require_fixed_key(op: Sketch) -> None:
    if not op.fixed_key:
        msg = (
            "Memory in sketch space adds up messages of different rounds, so they "
            "must share one key: pass sketch.fixed_key(op, key), got a fresh-key op."
        )
        raise ValueError(msg)
