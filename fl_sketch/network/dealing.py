"""Sites on one machine: a data set is dealt to their files, as its config deals it."""

import pathlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from fl_sketch.config import parse
from fl_sketch.core import pretrained
from fl_sketch.data import npz
from fl_sketch.data.examples import Splits
from fl_sketch.network import job, site_file
from fl_sketch.run.setup import prepare

DATA = "data.npz"


def deal(
    config: ConfigDict,
    data_dir: str | None,
    folder: pathlib.Path,
    *,
    names: Sequence[str] = (),
    **lends: Any,
) -> Splits:
    """Writes a folder for each site with its examples and its site.toml.

    Files that exist stay as they are.

    Args:
      config: the config of a run, with a client for each site.
      data_dir: the folder of raw data sets.
      folder: where the folders of sites are made.
      names: the names of the sites; by default site_0, site_1, ...
      **lends: further keys of each site.toml.

    Returns:
      The data set, of which the coordinator keeps the test data alone.
    """
    parse.check(config)
    job.require_possible(config)
    setup = prepare(config, data_dir)
    if where := job.needs_model(config):
        path = config.model[where].removeprefix(pretrained.PREFIX)
        lends = {"model": str(pathlib.Path(path).absolute()), **lends}
    shares = setup.dealt(setup.config.seed)[0]
    for client in range(setup.config.data.clients):
        place = file_of(folder, client, names)
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = shares.indices[shares.starts[client] : shares.starts[client + 1]]
        if not (place.parent / DATA).exists():
            train = setup.splits.train
            arrays = {"train_inputs": train.inputs[rows]}
            arrays |= {"train_targets": train.targets[rows]}
            npz.write(place.parent / DATA, arrays)
        if not place.exists():
            site_file.write(place, {"data": DATA, **lends})
    return setup.splits


def file_of(
    folder: pathlib.Path, client: int, names: Sequence[str] = ()
) -> pathlib.Path:
    """Returns the path of the site.toml of a client."""
    name = names[client] if names else f"site_{client}"
    return folder / name / site_file.FILE
