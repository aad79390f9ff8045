"""Optimizers as papers print them, where optax's have another form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core.protocols import Tree


class AmsgradState(NamedTuple):
    """The moments, and the largest second moment so far; each like the parameters.

    Attributes:
      first: the first moment, m.
      second: the second moment, v.
      largest: the largest v so far of each number, v_hat.
    """

    first: Tree
    second: Tree
    largest: Tree


def paper_amsgrad(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Returns AMSGrad without bias correction, as SAFL's Algorithm 2 has it.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  v_hat = max(v_hat, v);
    x -= learning_rate m / (sqrt(v_hat) + eps). `optax.amsgrad` corrects the bias of
    both moments first, and so takes other first steps.

    Args:
      learning_rate: the learning rate of the server; may be a schedule.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: the small number added to the root.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AmsgradState(zeros, zeros, zeros)

    def update(updates, state, params=None):
        del params
        first = optax.tree.update_moment(updates, state.first, b1, 1)
        second = optax.tree.update_moment(updates, state.second, b2, 2)
        largest = jax.tree.map(jnp.maximum, state.largest, second)
        step = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), first, largest)
        return step, AmsgradState(first, second, largest)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale_by_learning_rate(learning_rate),
    )
