"""The weights that a config's model begins with, where they are not random."""

from ml_collections import ConfigDict

from fl_sketch.config.parse import section
from fl_sketch.config.privacy import protection_of
from fl_sketch.core import pretrained
from fl_sketch.core.protocols import Tree
from fl_sketch.models import huggingface
from fl_sketch.models.params_io import Arrays, select
from fl_sketch.workdir import weights


def initial_of(config: ConfigDict, model: Tree) -> Arrays:
    """Returns the arrays that a config's model begins with; none: all are random.

    Args:
      model: shapes of the model.

    Raises:
      FileNotFoundError, ValueError: in one line, for an array that is missing or has
        another shape, for a name that does not exist, or for weights that have seen a
        data set of the name of the one which this run protects.
    """
    key, source = source_of(config)
    fresh = [name for name in config.model.fresh.split(",") if name]
    with section("model"):
        if not source:
            return {}
        if protection_of(config).private:
            name = weights.name_of_data(config.data.name)
            if name in trained_on(config):
                msg = (
                    "Expected weights of other data in a private run, got "
                    f"{key}={source}, trained on {name!r}, and "
                    f"data.name={config.data.name} without data.public=True."
                )
                raise ValueError(msg)
        if key == "init_from":
            return select(model, weights.read(source), fresh)
        found = huggingface.find(pretrained.read(source), model)
        return select(model, found.arrays, [*fresh, *found.fresh])


def source_of(config: ConfigDict) -> tuple[str, str]:
    """Returns the key that names what a config's model begins with, and its value.

    A run that begins with weights of another run takes none of the folder of a
    pretrained model. The value is empty if all arrays are random.
    """
    model = config.model
    if model.init_from or not pretrained.named(model.name):
        return "init_from", model.init_from
    return "name", model.name


def trained_on(config: ConfigDict) -> tuple[str, ...]:
    """Returns the names of the data sets that a config's first model has seen."""
    key, source = source_of(config)
    if source and key == "name":
        source = pretrained.weights(pretrained.read(source))
    return weights.trained_on(source) if source else ()


def seen_by_model(config: ConfigDict) -> tuple[str, ...]:
    """Returns the names of the data sets that a config's trained model has seen."""
    own = () if config.data.public else (weights.name_of_data(config.data.name),)
    return tuple({*trained_on(config), *own})
