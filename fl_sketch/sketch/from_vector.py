"""From an operator on one vector to an operator on updates of any shape.

Every operator of this package is written for one vector; `on_trees` makes a Sketch
of it that flattens updates, checks what it is given, and fills in what an operator
does not specialise. `fixed_key` ties a Sketch to one key for all rounds.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fl_sketch.core import trees
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Like, Message, Sketch, Tree


def on_trees(
    *,
    shape: Callable[[int | None], tuple[int, ...]],
    apply: Callable[[Key, jax.Array], jax.Array],
    transpose: Callable[[Key, jax.Array, int], jax.Array],
    resize: Callable[[int], Sketch],
    add_transpose: Callable | None = None,
    estimate: Callable | None = None,
) -> Sketch:
    """Returns the Sketch of pytrees that flattens them into the vector of an operator.

    Args:
      shape: `(d) -> tuple`, the shape of a message for a vector of length d (None:
        unknown).
      apply: `(key, x) -> R x` of a vector of any float type, in float32.
      transpose: `(key, s, d) -> R^T s`, a float32 vector of length d.
      resize: `(numbers) -> Sketch`, the operator with another number of numbers.
      add_transpose: `(key, s, x, scale) -> x + scale R^T s` in one pass, if there is.
      estimate: `(key, s, d) -> x`, a way to read a message other than the adjoint.
    """
    # Each is traced once, however often an algorithm sketches and reads in a round.
    # Inlined, what an operator stores is one constant of the program around it.
    traced_once = functools.partial(jax.jit, inline=True)
    apply = traced_once(apply)
    transpose = traced_once(transpose, static_argnums=2)
    add_transpose = add_transpose and traced_once(add_transpose)
    estimate = estimate and traced_once(estimate, static_argnums=2)

    def apply_tree(key: Key, tree: Tree) -> jax.Array:
        require_key(key)
        vector = trees.ravel(tree)
        shape(vector.size)
        return apply(key, vector)

    def add_transpose_tree(key: Key, message: jax.Array, tree: Tree, scale) -> Tree:
        d = _checked(shape, key, message, tree)
        vector = trees.ravel(tree)
        if add_transpose and vector.dtype == jnp.float32:
            summed = add_transpose(key, message, vector, scale)
        else:
            summed = vector + scale * transpose(key, message, d)
        return trees.unraveler(tree)(summed)

    def zeros(like: Like | None = None) -> jax.Array:
        return jnp.zeros(shape(None if like is None else trees.size(like)))

    adjoint = _reading(shape, transpose)
    return Sketch(
        apply=apply_tree,
        transpose=adjoint,
        add_transpose=add_transpose_tree,
        estimate=_reading(shape, estimate) if estimate else adjoint,
        zeros=zeros,
        size=lambda like=None: message_size(jax.eval_shape(lambda: zeros(like))),
        resize=resize,
    )


def _reading(shape: Callable, read: Callable) -> Callable[[Key, Message, Like], Tree]:
    """Returns what makes an update of a message, by a function that makes a vector."""

    def read_like(key, message, like):
        d = _checked(shape, key, message, like)
        return trees.unraveler(like)(read(key, message, d))

    return read_like


def _checked(shape: Callable, key: Key, message: jax.Array, like: Like) -> int:
    """Returns the length of an update, if a message may be one of such an update."""
    require_key(key)
    d = trees.size(like)
    if jnp.shape(message) != shape(d):
        msg = f"Expected a message of shape {shape(d)}, got {jnp.shape(message)}."
        raise ValueError(msg)
    return d


def message_size(message: Message) -> int:
    """Returns how many numbers `message` holds, an array or a pytree of arrays."""
    return sum(part.size for part in jax.tree.leaves(message))


def fixed_key(op: Sketch, key: Key) -> Sketch:
    """Returns `op` with the hashes of `key` in every round, whatever key it is given.

    Memory kept in sketch space (momentum, or the error of FetchSGD) adds up messages
    of different rounds, which means something only if they were made by the same
    map. The transforms that keep such memory ask for an operator made by this.

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

    return op._replace(
        apply=tie(op.apply),
        transpose=tie(op.transpose),
        add_transpose=tie(op.add_transpose),
        estimate=tie(op.estimate),
        resize=lambda numbers: fixed_key(op.resize(numbers), key),
        fixed_key=True,
    )
