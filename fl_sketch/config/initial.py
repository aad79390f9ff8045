"""The weights that a config's model begins with, where they are not random."""

import json
import pathlib

from ml_collections import ConfigDict

from fl_sketch.config import privacy as protection
from fl_sketch.config.parse import section
from fl_sketch.core.protocols import Tree
from fl_sketch.models.params_io import Arrays, chosen
from fl_sketch.workdir.weights import SIDECAR, read


def initial_of(config: ConfigDict, model: Tree) -> Arrays:
    """Returns the arrays that a config's model begins with; none: all are random.

    Args:
      config: the config; its `model.init_from` says where they are, and `model.fresh`
        which of them are not wanted.
      model: shapes of the model.

    Raises:
      FileNotFoundError, ValueError: in one line, for an array that is missing or has
        another shape, or for a name that there is not.
    """
    source, fresh = config.model.init_from, config.model.fresh.split(",")
    with section("model"):
        if not source:
            return {}
        if protection.asked_for(config) and not config.data.public:
            _require_of_others(source, config.data.name)
        return chosen(model, read(source), [name for name in fresh if name])


def _require_of_others(source: str, data: str) -> None:
    """Raises for weights that were trained on the data that a run is to protect.

    What they give away, no noise of this run counts. A file without a run's json beside
    it says nothing, and is taken for public.
    """
    path = pathlib.Path(source).expanduser()
    name, public = _trained_on(path)
    if name == data and not public:
        msg = (
            "Expected weights of public data in a private run, which counts them as "
            f"known to all, got init_from={source}, trained on data.name={data} "
            "without data.public=True."
        )
        raise ValueError(msg)


def _trained_on(path: pathlib.Path) -> tuple[str | None, bool]:
    """Returns the data set of a run, or of a file that it left, and if it is public."""
    try:
        if path.is_dir():
            data = json.loads((path / "config.json").read_text())["data"]
            return data["name"], data["public"]
        about = json.loads((path.parent / SIDECAR).read_text())
        return about["dataset"], about["public"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, False
