"""Configs with sites in one process, whose wire may fail."""

import pathlib

import numpy as np

from fl_sketch.network import job, policy
from fl_sketch.network import run as network
from fl_sketch.network.coordinator import Rules
from fl_sketch.workdir import weights
from tests.run.configs import config_with

QUICK = Rules(seconds=1.0, attempts=2, pause=0.0)
INTEGERS = {
    "privacy__bound": "clip",
    "privacy__noise_multiplier": 0.5,
    "privacy__noise": "skellam",
    "privacy__bits": 16,
    "privacy__smallest_cohort": 3,
    "privacy__relation": "replace_one",
}


class Hospitals:
    """Sites with files of their own below a folder."""

    def __init__(self, folder, config, data_dir=None, **allows):
        self.folder, self.config = pathlib.Path(folder), config
        self.names = [f"hospital_{one}" for one in range(config.data.clients)]
        places = self.folder / "sites", self.names
        self.splits = job.split(config, data_dir, *places, **allows)
        self.lines, self.sites = [], {}
        self.change = lambda client, answer: answer
        for client in range(config.data.clients):
            self.start(client)

    def kit(self, client):
        return self.folder / "sites" / self.names[client]

    def start(self, client, **allows):
        """Starts a site, or again, after its owner has changed what it allows."""
        if allows:
            policy.write(self.kit(client) / policy.FILE, {"data": job.DATA, **allows})
        self.sites[client] = network.site_of(self.kit(client), self.lines.append)

    def send(self, data, seconds):
        del seconds
        answers = {
            one: self.change(one, self.sites[one].receive(x)) for one, x in data.items()
        }
        return {one: up for one, up in answers.items() if up is not None}

    def run(self, workdir, before_round=lambda: None):
        return network.run(
            self.config,
            self.splits,
            workdir,
            self.send,
            names=self.names,
            rules=QUICK,
            before_round=before_round,
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
    }
    return config_with(**keys | changes)


def furthest(one, other):
    """Returns the largest difference between the models of two folders."""
    one, other = (weights.read(str(folder)) for folder in (one, other))
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
