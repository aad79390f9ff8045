"""From an operator on one vector to an operator on updates of any shape.

Every operator of this package is written for one vector. `on_trees` turns it into a
Sketch that flattens updates and checks its input. `fixed_key` uses one key in all
rounds, and `materialized` one matrix.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fl_sketch.core import trees
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Like, Message, Sketch, Tree

ROWS = 64  # of a materialized matrix, made in one pass over the random numbers


def on_trees(
    *,
    shape: Callable[[int | None], tuple[int, ...]],
    apply: Callable[[Key, jax.Array], jax.Array],
    transpose: Callable[[Key, jax.Array, int], jax.Array],
    resize: Callable[[int], Sketch],
    estimate: Callable | None = None,
) -> Sketch:
    """Returns the Sketch that flattens pytrees into the vectors of an operator.

    Args:
      shape: `(d) -> tuple`, the shape of a message for a vector of length d (None:
        unknown).
      apply: `(key, x) -> R x` of a vector of any float type, in float32.
      transpose: `(key, s, d) -> R^T s`, a float32 vector of length d.
      estimate: `(key, s, d) -> x`; None: the adjoint.
    """
    # Each is traced once, however often an algorithm sketches and reads in a round.
    # Inlined, an operator's matrix is one constant of the program around it.
    traced_once = functools.partial(jax.jit, inline=True)
    apply = traced_once(apply)
    transpose = traced_once(transpose, static_argnums=2)
    estimate = estimate and traced_once(estimate, static_argnums=2)

    def apply_tree(key: Key, tree: Tree) -> jax.Array:
        require_key(key)
        vector = trees.ravel(tree)
        shape(vector.size)
        return apply(key, vector)

    def zeros(like: Like | None = None) -> jax.Array:
        return jnp.zeros(shape(None if like is None else trees.size(like)))

    adjoint = _reading(shape, transpose)
    return Sketch(
        apply=apply_tree,
        transpose=adjoint,
        estimate=_reading(shape, estimate) if estimate else adjoint,
        zeros=zeros,
        size=lambda like=None: message_size(jax.eval_shape(lambda: zeros(like))),
        resize=resize,
    )


def _reading(shape: Callable, read: Callable) -> Callable[[Key, Message, Like], Tree]:
    """Returns `read`, which makes a vector of a message, for updates of any shape."""

    def read_like(key, message, like):
        require_key(key)
        d = trees.size(like)
        if jnp.shape(message) != shape(d):
            msg = f"Expected a message of shape {shape(d)}, got {jnp.shape(message)}."
            raise ValueError(msg)
        return trees.unraveler(like)(read(key, message, d))

    return read_like


def message_size(message: Message) -> int:
    """Returns the number of numbers in a message."""
    return sum(part.size for part in jax.tree.leaves(message))


def fixed_key(op: Sketch, key: Key) -> Sketch:
    """Returns `op` with the hashes of `key` in every round; it ignores the round's key.

    Memory in sketch space (momentum, or the error of FetchSGD) adds up messages of
    different rounds, so the same map must have made them. The transforms with such
    memory require an operator made by this function.

    >>> import jax, jax.numpy as jnp
    >>> from fl_sketch import sketch
    >>> op = sketch.fixed_key(sketch.gaussian(4), jax.random.key(7))
    >>> x, round_1, round_2 = jnp.ones(9), jax.random.key(1), jax.random.key(2)
    >>> bool(jnp.all(op.apply(round_1, x) == op.apply(round_2, x)))
    True
    """
    require_key(key)

    def tie(function):
        def with_fixed_key(ignored_round_key, *args):
            del ignored_round_key
            return function(key, *args)

        return with_fixed_key

    transpose = tie(op.transpose)
    return op._replace(
        apply=tie(op.apply),
        transpose=transpose,
        estimate=transpose if op.estimate is op.transpose else tie(op.estimate),
        resize=lambda numbers: fixed_key(op.resize(numbers), key),
        fixed_key=True,
    )


def materialized(op: Sketch, key: Key) -> Sketch:
    """Returns `op` as the matrix of one key, kept in memory for all rounds.

    The matrix has b d numbers and is made when the first vector of a length is
    sketched. It is faster if R is dense and one R is used thousands of times, as in an
    attack: `gaussian` and `ams` draw all of their random numbers again for every
    product.

    >>> from fl_sketch import sketch
    >>> key, x = jax.random.key(7), jnp.arange(9.0)
    >>> slow = sketch.gaussian(4)
    >>> fast = sketch.materialized(slow, key)
    >>> bool(jnp.allclose(fast.apply(jax.random.key(1), x), slow.apply(key, x)))
    True
    """
    require_key(key)

    def shape(d):
        return jax.eval_shape(lambda: op.zeros(d)).shape

    @functools.cache
    def matrix(d):
        with jax.ensure_compile_time_eval():
            units = jnp.eye(op.size(d)).reshape(-1, *shape(d))
            row = lambda unit: op.transpose(key, unit, d)  # noqa: E731
            return jax.jit(lambda: jax.lax.map(row, units, batch_size=ROWS))()

    def apply(ignored_round_key, vector):
        del ignored_round_key
        x = vector.astype(jnp.float32)
        product = jnp.matmul(matrix(x.size), x, precision=jax.lax.Precision.HIGHEST)
        return product.reshape(shape(x.size))

    def transpose(ignored_round_key, message, d):
        del ignored_round_key
        numbers = message.ravel()
        return jnp.matmul(numbers, matrix(d), precision=jax.lax.Precision.HIGHEST)

    def estimate(ignored_round_key, message, d):
        del ignored_round_key
        return op.estimate(key, message, d)

    made = on_trees(
        shape=shape,
        apply=apply,
        transpose=transpose,
        resize=lambda numbers: materialized(op.resize(numbers), key),
        estimate=None if op.estimate is op.transpose else estimate,
    )
    return made._replace(fixed_key=True)
