"""Server optimizers that optax lacks, or has in another form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import Halves, Tree


class AmsgradState(NamedTuple):
    """The moments m and v and the largest v so far, each like the parameters."""

    first: Tree
    second: Tree
    largest: Tree


def paper_amsgrad(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    floor: float = 0.0,
) -> optax.GradientTransformation:
    """Returns AMSGrad without bias correction, as SAFL's Algorithm 2 has it.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  v_hat = max(v_hat, v, floor);
    x -= learning_rate m / (sqrt(v_hat) + eps). `optax.amsgrad` corrects the bias of
    both moments first, and so takes other first steps. Of `Halves`, m has the first and
    v the second, as in SADL. FedCAMS has the `floor` instead of eps.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AmsgradState(zeros, zeros, zeros)

    def update(updates, state, params=None):
        del params
        g, h = updates if isinstance(updates, Halves) else (updates, updates)
        first = optax.tree.update_moment(g, state.first, b1, 1)
        second = optax.tree.update_moment(h, state.second, b2, 2)
        largest = jax.tree.map(jnp.maximum, state.largest, second)
        if not validate.is_off(floor):
            largest = jax.tree.map(lambda v: jnp.maximum(v, floor), largest)
        step = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), first, largest)
        return step, AmsgradState(first, second, largest)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale_by_learning_rate(learning_rate),
    )


class ScalarAdamState(NamedTuple):
    """The number of steps, the first moment, and the second as one float32."""

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
    start at zero;  x -= learning_rate m / (sqrt(v) + eps). It is a control in studies
    of sketches: a de-sketched x has `E v_i = x_i^2 + (|x|^2 - x_i^2) / b`, which is
    nearly the same for all i when b is small, and Adam is then this.
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
        # A product: a compiler may or may not make one of a division by a number, and
        # a client that follows the server must have the same bits.
        step = jax.tree.map(lambda m: m * (1 / root), mean)
        return step, ScalarAdamState(count, first, second)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale_by_learning_rate(learning_rate),
    )
