"""The loss of a config's model where only a part of it trains (`client.trains`)."""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from fl_sketch import models
from fl_sketch.config import build
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import Numbers, section
from fl_sketch.core import validate
from fl_sketch.core.constants import Constant
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Tree
from fl_sketch.core.trees import Stateful
from fl_sketch.engine.mesh import placed
from fl_sketch.models.params_io import Arrays
from fl_sketch.transforms.parts import Parts, split
from fl_sketch.transforms.trains import ALL

DECAY = "model.weight_decay"


def parts_of(
    config: ConfigDict, model: Tree, arrays: Arrays, mesh: jax.sharding.Mesh | None
) -> Parts | None:
    """Returns the parts of a config's model; None: all of it trains.

    Args:
      model: shapes of the model.
      arrays: those that it begins with in place of random ones, by name.
      mesh: the devices that have what does not train from here on; None: they are not
        here.

    Raises:
      ValueError: in one line, for `client.trains` that do not fit the model, or for
        an array that would stay random.
    """
    if config.client.trains == ALL:
        return None
    with section("client"):
        parts = split(model, config.client.trains, arrays)
    if mesh is None:
        return parts
    return parts._replace(frozen=Constant(placed(mesh, parts.frozen.tree)))


def loss_of(
    config: ConfigDict, seen: Seen, numbers: Numbers, parts: Parts | None
) -> models.Loss:
    """Returns the loss of what trains of a config's model.

    Weight decay applies to the trained part. If statistics do not change, the model
    runs in evaluation mode.
    """
    if parts is None:
        return build.loss_of(config, seen, numbers)
    whole = build.loss_of(config, seen, {**numbers, DECAY: 0.0})
    decay, still = numbers[DECAY], isinstance(parts.model, Stateful)

    def init(key, inputs):
        return parts.start(whole.init(key, inputs), apart(key, Purpose.FACTORS))

    def value(params, inputs, targets, weights=None, key=None):
        model = parts.whole(params)
        mean = whole.value(model, inputs, targets, weights, key, still)
        mean = mean[0] if still else mean
        if validate.is_off(decay):
            return mean
        counts = True if weights is None else jnp.sum(weights) > 0
        norm = optax.tree.norm(params, squared=True)
        return mean + jnp.where(counts, decay / 2 * norm, 0)

    def metrics(params, inputs, targets, weights=None):
        return whole.metrics(parts.whole(params), inputs, targets, weights)

    return models.Loss(init, value, metrics, whole.measured, whole.random)
