"""Adam with one second moment for the whole model: what is left of it is a length."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees
from fl_sketch.core.protocols import Tree


class ScalarAdamState(NamedTuple):
    """The moments.

    Attributes:
      count: the number of steps so far, int32.
      first: the first moment, like the parameters.
      second: the second moment, one float32.
    """

    count: jax.Array
    first: Tree
    second: jax.Array


def scalar_adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Returns Adam whose second moment is the mean over all coordinates of theirs.

    m = b1 m + (1 - b1) g;  `v = b2 v + (1 - b2) |g|^2 / d`, both corrected for their
    start at zero;  x -= learning_rate m / (sqrt(v) + eps). A control for experiments
    with sketches: a de-sketched x has `E v_i = x_i^2 + (|x|^2 - x_i^2) / b`, which is
    nearly the same for all i when b is small, and Adam then no more than this.

    Args:
      learning_rate: the learning rate of the server; may be a schedule.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: the small number added to the root.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return ScalarAdamState(jnp.int32(0), zeros, jnp.float32(0))

    def update(updates, state, params=None):
        del params
        count = jnp.asarray(optax.safe_increment(state.count))
        square = optax.tree.norm(updates, squared=True) / trees.size(updates)
        first = optax.tree.update_moment(updates, state.first, b1, 1)
        second = b2 * state.second + (1 - b2) * square
        mean = optax.tree.bias_correction(first, b1, count)
        root = jnp.sqrt(second / (1 - b2**count)) + eps
        # A product, since a compiler may or may not make one of a division by a number,
        # and whoever follows a server must end with the same bits.
        step = jax.tree.map(lambda m: m * (1 / root), mean)
        return step, ScalarAdamState(count, first, second)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale_by_learning_rate(learning_rate),
    )
