"""A private run does the same whatever one client's data are: only numbers differ."""

import functools

import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.config import parse
from fl_sketch.core import trees
from fl_sketch.data import datasets
from fl_sketch.data.examples import Examples
from fl_sketch.run import facts, prepare
from fl_sketch.run.folder import Folder
from fl_sketch.workdir import checkpoint
from tests.run.configs import config_with

pytestmark = pytest.mark.slow

PRIVATE = {
    "data__clients": 20,
    "cohort__sampling": "poisson",
    "cohort__size": 10,
    "rounds": 6,
    "eval_every": 2,
    "checkpoint_every": 3,
    "checkpoint_keep": 0,
    "privacy__bound": "clip",
    "privacy__target_epsilon": 8.0,
    "privacy__randomness": "seed",
    "data__classes": 10,
}
TARGET = 3  # the client whose data change


def owned():
    """Returns the places of the training examples that the client owns."""
    config = config_with(**PRIVATE)
    splits = datasets.load("digits")
    return parse.partition_of(config.data, splits.train.targets, 0).of(TARGET)


def with_inputs(value):
    def change(train, places):
        train.inputs[places] = value

    return change


def labels_of_no_class(train, places):
    train.targets[places] = np.where(np.arange(len(places)) % 2, 70, -1)


def as_they_are(train, places):
    del train, places


CHANGES = {
    "NaN": with_inputs(np.nan),
    "3e38": with_inputs(3e38),
    "labels of no class": labels_of_no_class,
}
# What a run may have besides a model: a client's state, and a server's.
OPTIONS = {
    "neither": {},
    "corrections and a threshold": {
        "algorithm": "fedgate",
        "server__rate": 0.1,
        "privacy__bound": "adaptive",
        "privacy__quantile_noise": 5.0,
    },
}


def flow(change, folder, **options):
    """Returns everything that happens in a run but for the numbers it releases."""
    splits = datasets.load("digits")
    train = Examples(splits.train.inputs.copy(), splits.train.targets.copy())
    change(train, owned())
    found = 1 + max(9, int(train.targets.max()))
    changed = splits._replace(train=train, classes=found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", lambda name, data_dir=None, **_: changed)
        setup = prepare(config_with(**PRIVATE | options))
    experiment = setup.experiment
    with Folder(folder, experiment, facts.about(setup), keep=0) as own:
        end = engine.run(experiment, key=setup.roots(), callbacks=[own])
    assert trees.finite(end.params)
    rows = [(row["round"], tuple(row), row["epsilon"]) for row in end.history]
    saved = checkpoint.rounds(folder / "checkpoints")
    return rows, saved, experiment.last, experiment.guarantee


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    def played_so(name):
        return flow(as_they_are, tmp_path_factory.mktemp("plain"), **OPTIONS[name])

    return functools.cache(played_so)


@pytest.mark.parametrize("name", CHANGES)
def test_one_client_changes_nothing_of_what_happens(name, undisturbed, tmp_path):
    expected = undisturbed("neither")
    assert [row[0] for row in expected[0]] == [2, 4, 6] and expected[1] == [3, 6]
    assert flow(CHANGES[name], tmp_path) == expected


def test_nor_with_corrections_and_a_threshold(undisturbed, tmp_path):
    options = "corrections and a threshold"
    found = flow(CHANGES["NaN"], tmp_path, **OPTIONS[options])
    assert found == undisturbed(options)


def test_an_empty_client_changes_nothing_either(monkeypatch, undisturbed, tmp_path):
    expected = undisturbed("neither")
    partition_of, places = parse.partition_of, owned()

    def without(*arguments):
        """What it had is dealt to none and comes last: the program is the same."""
        shares = partition_of(*arguments)
        its = np.isin(shares.indices, places)
        indices = np.concatenate([shares.indices[~its], shares.indices[its]])
        starts = shares.starts - len(places) * (np.arange(21) > TARGET)
        return shares._replace(indices=indices, starts=starts)

    monkeypatch.setattr(parse, "partition_of", without)
    monkeypatch.setitem(globals(), "owned", lambda: places)
    assert flow(as_they_are, tmp_path) == expected
