"""The weights that a config's model begins with, where they are not random."""

import os

from ml_collections import ConfigDict

from fl_sketch.config.parse import section
from fl_sketch.config.privacy import protection_of
from fl_sketch.core.protocols import Tree
from fl_sketch.models.params_io import Arrays, chosen
from fl_sketch.workdir import weights
from fl_sketch.workdir.identity import keyed


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
        if protection_of(config).private and _has_seen(
            weights.trained_on(source), config.data.name, digests
        ):
            msg = (
                "Expected weights of public data in a private run, which counts them "
                f"as known to all, got init_from={source}, trained on the data of "
                f"data.name={config.data.name} without data.public=True."
            )
            raise ValueError(msg)
        names = [name for name in fresh if name]
        return chosen(model, weights.read(source), names)


def _has_seen(
    before: weights.TrainedOn | None, name: str, digests: dict[str, str]
) -> bool:
    """Returns whether weights were trained on the data that a run is to protect.

    No noise of this run counts what they give away. Digests of the data are compared,
    and the names of the data sets, for a part of one has another digest. Weights
    without a record are taken for public.
    """
    if before is None:
        return False
    train = [digest for key, digest in digests.items() if key.startswith("train_")]
    same = any(keyed(digest, before.key) in before.digests for digest in train)
    return same or plain_name(name) in map(plain_name, before.names)


def plain_name(name: str) -> str:
    """Returns the name of a data set, one for all spellings of a file's path.

    >>> plain_name("mnist"), plain_name("npz//data/./d.npz")
    ('mnist', 'npz//data/d.npz')
    """
    kind, slash, path = name.partition("/")
    if kind != "npz" or not slash:
        return name
    return f"npz/{os.path.realpath(os.path.expanduser(path))}"
