"""The weights that a config's model begins with, where they are not random."""

from ml_collections import ConfigDict

from fl_sketch.config.parse import section
from fl_sketch.config.privacy import protection_of
from fl_sketch.core import pretrained
from fl_sketch.core.protocols import Tree
from fl_sketch.models import huggingface
from fl_sketch.models.params_io import Arrays, select
from fl_sketch.workdir import origin, weights


def initial_of(config: ConfigDict, model: Tree, digests: dict[str, str]) -> Arrays:
    """Returns the arrays that a config's model begins with; none: all are random.

    Args:
      model: shapes of the model.
      digests: those of the run's data, by the names of `examples.digests`.

    Raises:
      FileNotFoundError, ValueError: in one line, for an array that is missing or has
        another shape, for a name that does not exist, or for weights that have seen the
        data which this run protects.
    """
    key, source = source_of(config)
    fresh = [name for name in config.model.fresh.split(",") if name]
    with section("model"):
        if not source:
            return {}
        if protection_of(config).private:
            _require_unseen(key, source, config.data.name, trained_on(config), digests)
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


def trained_on(config: ConfigDict) -> origin.TrainedOn | None:
    """Returns what the weights have seen that a config's model begins with."""
    key, source = source_of(config)
    if not source:
        return None
    if key == "init_from":
        return origin.trained_on(source)
    return origin.of_files([pretrained.weights(pretrained.read(source))])


def _require_unseen(
    key: str,
    source: str,
    name: str,
    before: origin.TrainedOn | None,
    digests: dict[str, str],
) -> None:
    """Raises if weights were trained on the data that a private run is to protect."""
    if reason := origin.seen(before, name, digests):
        msg = (
            "Expected weights of public data in a private run, got "
            f"{key}={source}, {reason}, and data.name={name} without data.public=True."
        )
        raise ValueError(msg)
