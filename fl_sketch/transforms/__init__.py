"""Sketches as optax transformations, for your own training step.

The round key is an extra argument of `update`, so the chain below works in any
`shard_map` step. `params` must be passed too, as the shape of the result.

>>> import jax, optax
>>> from fl_sketch import sketch, transforms
>>> op = sketch.count_sketch(cols=10)
>>> tx = optax.chain(
...     transforms.sketch(op),  # one device's update to a short message
...     transforms.aggregate("devices"),  # the only thing that crosses the network
...     transforms.desketch(op),
...     optax.adam(1e-3),
... )
"""

from fl_sketch.transforms.error_feedback import changes as changes
from fl_sketch.transforms.error_feedback import compress as compress
from fl_sketch.transforms.error_feedback import error_feedback as error_feedback
from fl_sketch.transforms.fetchsgd import fetchsgd as fetchsgd
from fl_sketch.transforms.paper_optimizers import paper_amsgrad as paper_amsgrad
from fl_sketch.transforms.paper_optimizers import scalar_adam as scalar_adam
from fl_sketch.transforms.pipeline import aggregate as aggregate
from fl_sketch.transforms.pipeline import desketch as desketch
from fl_sketch.transforms.pipeline import sketch as sketch
