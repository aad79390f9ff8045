"""Codes: how messages that are shorter than their numbers are packed on the wire.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch.sketch import compressors
>>> update = {"w": jnp.array([0.0, -3.0, 1.0])}
>>> code = of_compressor(
...     compressors.top_k(1), jax.random.key(0), trees.ravel(update), update
... )
>>> code.expand(code.arrays())
{'w': Array([ 0., -3.,  0.], dtype=float32)}
"""

import jax

from fl_sketch.core import trees
from fl_sketch.core.protocols import Code, Compressor, Field, Key, Tree
from fl_sketch.core.wire import FLOAT_BITS


def of_compressor(
    compressor: Compressor, key: Key, vector: jax.Array, like: Tree
) -> Code:
    """Returns the code of a compressed `vector`, which stands for a tree."""
    unravel = trees.unraveler(like)
    return Code(
        compressor.fields(vector.size),
        lambda: compressor.compress(key, vector),
        lambda arrays: unravel(compressor.expand(arrays, vector.size)),
    )


def of_floats(tree: Tree) -> Code:
    """Returns the code of a tree as it is: 32 bits a number."""
    unravel = trees.unraveler(tree)
    return Code(
        (Field(trees.size(tree), FLOAT_BITS, "float"),),
        lambda: (trees.ravel(tree),),
        lambda arrays: unravel(arrays[0]),
    )
