"""From an operator on one vector to an operator on updates of any shape.

Every operator of this package is written for one vector. `on_trees` turns it into a
Sketch that flattens updates and checks its input. `fixed_key` uses one key in all
rounds, and `materialized` one matrix.
"""

import functools
import math
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
    apply = jax.jit(apply, inline=True)

    def apply_tree(key: Key, tree: Tree) -> jax.Array:
        require_key(key)
        vector = trees.ravel(tree)
        shape(vector.size)
        return apply(key, vector)

    def on_messages(read: Callable) -> Callable[[Key, Message, Like], Tree]:
        read = jax.jit(read, static_argnums=2, inline=True)

        def read_tree(key, message, like):
            require_key(key)
            d = trees.size(like)
            if jnp.shape(message) != shape(d):
                got = jnp.shape(message)
                msg = f"A message has shape {shape(d)} here, not {got}."
                raise ValueError(msg)
            return trees.unraveler(like)(read(key, message, d))

        return read_tree

    def shape_for(like: Like | None) -> tuple[int, ...]:
        return shape(None if like is None else trees.size(like))

    adjoint = on_messages(transpose)
    return Sketch(
        apply=apply_tree,
        transpose=adjoint,
        estimate=on_messages(estimate) if estimate else adjoint,
        zeros=lambda like=None: jnp.zeros(shape_for(like)),
        size=lambda like=None: math.prod(shape_for(like)),
        resize=resize,
    )


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
        return lambda _, *args: function(key, *args)

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

    The matrix of the last length that was sketched is kept, b d numbers. It is faster
    if R is dense and one R is used thousands of times, as in an attack: `gaussian` and
    `ams` draw all of their random numbers again for every product.
    """
    require_key(key)

    def shape(d):
        return jax.eval_shape(lambda: op.zeros(d)).shape

    @functools.lru_cache(maxsize=1)
    def matrix(d):
        with jax.ensure_compile_time_eval():
            units = jnp.eye(op.size(d)).reshape(-1, *shape(d))
            row = lambda unit: op.transpose(key, unit, d)  # noqa: E731
            return jax.jit(lambda: jax.lax.map(row, units, batch_size=ROWS))()

    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    made = on_trees(
        shape=shape,
        apply=lambda _, x: product(matrix(x.size), x.astype(jnp.float32)).reshape(
            shape(x.size)
        ),
        transpose=lambda _, message, d: product(message.ravel(), matrix(d)),
        resize=lambda numbers: materialized(op.resize(numbers), key),
        estimate=None
        if op.estimate is op.transpose
        else lambda _, message, d: op.estimate(key, message, d),
    )
    return made._replace(fixed_key=True)
