"""An operator as one matrix for all rounds, kept in memory."""

import functools

import jax
import jax.numpy as jnp

from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Sketch
from fl_sketch.sketch.from_vector import on_trees

TOGETHER = 64  # rows made in one pass over the operator's random numbers


def materialized(op: Sketch, key: Key) -> Sketch:
    """Returns `op` with the matrix that it is under one key, whatever key it is given.

    The matrix takes b d numbers. It pays where one round's R is needed thousands of
    times, as an attacker does, and R is dense: `gaussian` and `ams` draw all of their
    random numbers anew for every product.

    >>> from fl_sketch import sketch
    >>> key, x = jax.random.key(7), jnp.arange(9.0)
    >>> slow = sketch.gaussian(4)
    >>> fast = sketch.materialized(slow, key)
    >>> bool(jnp.allclose(fast.apply(jax.random.key(1), x), slow.apply(key, x)))
    True

    Args:
      op: the operator; its matrix for a length is made when one of that length comes.
      key: the key of the matrix.
    """
    require_key(key)

    def shape(d):
        return jax.eval_shape(lambda: op.zeros(d)).shape

    @functools.cache
    def matrix(d):
        with jax.ensure_compile_time_eval():
            units = jnp.eye(op.size(d)).reshape(-1, *shape(d))
            row = lambda unit: op.transpose(key, unit, d)  # noqa: E731
            return jax.jit(lambda: jax.lax.map(row, units, batch_size=TOGETHER))()

    def apply(ignored_round_key, vector):
        del ignored_round_key
        x = vector.astype(jnp.float32)
        found = jnp.matmul(matrix(x.size), x, precision=jax.lax.Precision.HIGHEST)
        return found.reshape(shape(x.size))

    def transpose(ignored_round_key, message, d):
        del ignored_round_key
        numbers = message.ravel()
        return jnp.matmul(numbers, matrix(d), precision=jax.lax.Precision.HIGHEST)

    made = on_trees(
        shape=shape,
        apply=apply,
        transpose=transpose,
        resize=lambda numbers: materialized(op.resize(numbers), key),
    )
    return made._replace(fixed_key=True)
