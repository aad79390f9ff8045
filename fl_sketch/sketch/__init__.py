"""Sketch operators: random linear maps of updates to a few numbers, and back.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import sketch
>>> op = sketch.count_sketch(cols=50)
>>> update = {"w": jnp.ones((20, 10)), "b": jnp.zeros(10)}
>>> key = jax.random.key(0)  # fresh in every round, the same for all clients
>>> message = op.apply(key, update)
>>> message.shape
(1, 50)
>>> jax.tree.map(jnp.shape, op.transpose(key, message, update))
{'b': (10,), 'w': (20, 10)}
"""

from fl_sketch.core.protocols import Sketch as Sketch
from fl_sketch.sketch.dense import ams as ams
from fl_sketch.sketch.dense import gaussian as gaussian
from fl_sketch.sketch.from_vector import fixed_key as fixed_key
from fl_sketch.sketch.from_vector import materialized as materialized
from fl_sketch.sketch.hadamard import srht as srht
from fl_sketch.sketch.hashed import count_sketch as count_sketch
from fl_sketch.sketch.hashed import sparse_embedding as sparse_embedding
from fl_sketch.sketch.heavy import FILLS as FILLS
from fl_sketch.sketch.heavy import heavy_coordinates as heavy_coordinates
from fl_sketch.sketch.heavy import squared_norm as squared_norm
from fl_sketch.sketch.leafwise import leaf_by_leaf as leaf_by_leaf
from fl_sketch.sketch.sampling import identity as identity
from fl_sketch.sketch.sampling import uniform_sampling as uniform_sampling
from fl_sketch.sketch.sharded import sharded as sharded
