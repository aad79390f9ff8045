"""The weights that a config's model begins with, where they are not random."""

from ml_collections import ConfigDict

from fl_sketch.config.parse import section
from fl_sketch.config.privacy import protection_of
from fl_sketch.core.protocols import Tree
from fl_sketch.models.params_io import Arrays, chosen
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
    source, fresh = config.model.init_from, config.model.fresh.split(",")
    with section("model"):
        if not source:
            return {}
        if protection_of(config).private:
            _require_unseen(source, config.data.name, digests)
        names = [name for name in fresh if name]
        return chosen(model, weights.read(source), names)


def _require_unseen(source: str, name: str, digests: dict[str, str]) -> None:
    """Raises if weights were trained on the data that a private run is to protect."""
    if reason := origin.seen(origin.trained_on(source), name, digests):
        msg = (
            "Expected weights of public data in a private run, got init_from="
            f"{source}, {reason}, and data.name={name} without data.public=True."
        )
        raise ValueError(msg)
