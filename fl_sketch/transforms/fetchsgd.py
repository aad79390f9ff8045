"""FetchSGD's server: momentum and error of the size of a message.

Such memory adds up the messages of many rounds, so one map must have made them all: the
operator must have a fixed key, as `sketch.fixed_key` gives it.
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


class FetchState(NamedTuple):
    """The momentum u and the error e, which are messages, and the number of steps."""

    momentum: Message
    error: Message
    count: jax.Array


def fetchsgd(
    op: Sketch,
    k: int,
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: jax.typing.ArrayLike = 0.9,
    forget: str = "zero",
    masking: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """FetchSGD's server: from mean sketches to the step of the model.

    Algorithm 1: momentum u = rho u + S and error e += eta u in sketch space. The k
    heaviest coordinates of e are the step, and leave e ("error accumulation").

    Args:
      k: the number of coordinates that a step changes.
      learning_rate: the rate eta, or a schedule of it.
      momentum: the decay rho of the momentum.
      forget: how a step leaves the error. "zero": every number of the error that its
        sketch touches becomes zero (the code released with the paper). "subtract": its
        sketch is subtracted (the paper); errors then grow without end for many k.
      masking: whether the momentum forgets as well, where the step's sketch is not
        zero (the released code: momentum factor masking).

    Reference: Rothchild et al. (2020), Algorithm 1 and Appendix B.
    """
    if not op.fixed_key:
        msg = (
            "FetchSGD adds messages of different rounds, which one sketch must have "
            "made: pass sketch.fixed_key(op, key)."
        )
        raise ValueError(msg)
    validate.one_of(FORGET, forget=forget)
    keep_top, key = compressors.top_k(k), jax.random.key(0)  # op has its own key
    rate = learning_rate if callable(learning_rate) else lambda count: learning_rate

    def init(params):
        validate.at_most(trees.size(params), "the numbers of the parameters", k=k)
        zeros = op.zeros(params)
        return FetchState(zeros, zeros, jnp.int32(0))

    def zeroed(message, applied):
        return jax.tree.map(lambda m, a: jnp.where(a == 0, m, 0), message, applied)

    def update(updates, state, params=None, **extra_args):
        del extra_args
        params = require(params, NEED_PARAMS)
        moved = jax.tree.map(lambda u, s: momentum * u + s, state.momentum, updates)
        eta = rate(state.count)
        error = jax.tree.map(lambda e, u: e + eta * u, state.error, moved)
        estimate = trees.ravel(op.estimate(key, error, params))
        step = trees.unraveler(params)(keep_top.apply(key, estimate))
        applied = op.apply(key, step)
        if forget == "subtract":
            error = jax.tree.map(jnp.subtract, error, applied)
        else:
            error = zeroed(error, applied)
        if masking:
            moved = zeroed(moved, applied)
        step = jax.tree.map(jnp.negative, step)
        return step, FetchState(moved, error, state.count + 1)

    return optax.GradientTransformationExtraArgs(init, update)
