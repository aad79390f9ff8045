"""Configs with sites in one process: data dealt to files, and a wire without a net."""

import json
import pathlib
from typing import Any

import numpy as np

from fl_sketch.network import dealing, identities, job, site_file
from fl_sketch.network import run as network
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.coordinator import Rules
from fl_sketch.network.site import Site
from fl_sketch.run.run import Listeners
from fl_sketch.workdir import weights
from tests.run.configs import config_with, quiet

QUICK = Rules(seconds=1.0, attempts=2, pause=0.0)

INTEGERS = {
    "privacy__bound": "clip",
    "privacy__noise_multiplier": 0.5,
    "privacy__noise": "skellam",
    "privacy__bits": 16,
    "privacy__smallest_cohort": 3,
    "privacy__randomness": "seed",
    "privacy__relation": "replace_one",
}
METHODS = {
    "safl": {},
    "heaprix": {
        "algorithm": "fedsketch",
        "sketch__query": "heaprix",
        "sketch__rows": 5,
    },
    "scaffold": {"algorithm": "scaffold"},
    "ef21": {"algorithm": "ef21"},
    "integers": INTEGERS,
}
COMPILED: dict[str, Conversation] = {}


def joined(lent, terms, kit):
    """Returns a site's part, with programs that all sites of equal runs here share.

    They would be the same, and each site would compile them for itself.
    """
    part = job.join(lent, json.loads(json.dumps(terms)), kit)
    its_own = {"run": "", "client": 0, "sites": [], "asks": []}
    alike = json.dumps({**terms, **its_own}) + part.conversation.digest.hex()
    return part._replace(conversation=COMPILED.setdefault(alike, part.conversation))


class Hospitals:
    """Sites with files of their own below a folder, and identities if they sign."""

    def __init__(self, folder, config, data_dir=None, *, signed=False, **lends):
        self.folder, self.config = pathlib.Path(folder), config
        self.splits = dealing.deal(config, data_dir, self.folder / "sites", **lends)
        self.lines: list[str] = []
        self.names = [f"site_{one}" for one in range(config.data.clients)] * signed
        places = {name: self.folder / "sites" / name for name in self.names}
        identities.write(places)
        self.sites: dict[int, Site] = {}
        self.change: Any = lambda client, up: up
        for client in range(config.data.clients):
            self.start(client)

    def lent(self, client):
        return site_file.read(dealing.file_of(self.folder / "sites", client))

    def lend(self, client, **lends):
        """Starts a site again whose owner lends something else."""
        path = dealing.file_of(self.folder / "sites", client)
        site_file.write(path, {"data": dealing.DATA, **lends})
        self.start(client)

    def start(self, client):
        lent = self.lent(client)
        kit = lent.folder.parent if self.names else None
        self.sites[client] = Site(
            lambda terms: joined(lent, terms, kit), self.lines.append
        )

    def send(self, data, seconds):
        del seconds
        answers = {
            one: self.change(one, self.sites[one].receive(x)) for one, x in data.items()
        }
        return {one: up for one, up in answers.items() if up is not None}

    def run(self, workdir, asks=("measured",), on_row=None):
        return network.run(
            self.config,
            self.splits,
            workdir,
            self.send,
            rules=QUICK,
            asks=asks,
            sites=self.names,
            told=Listeners(on_row=on_row, say=quiet),
            say=self.lines.append,
        )


def five(**changes):
    """Returns a config of five sites that share the digits unevenly."""
    keys = {
        "data__clients": 5,
        "data__partition": "dirichlet",
        "cohort__sampling": "everyone",
        "download": "model",
        "rounds": 6,
        "eval_every": 3,
        "checkpoint_every": 3,
    }
    return config_with(**keys | changes)


def weights_in(workdir):
    """Returns the arrays of the last model of a run, by name."""
    return weights.read(str(workdir))


def furthest(one, other):
    """Returns the largest difference between two sets of arrays of the same names."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
