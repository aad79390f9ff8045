"""A private run does the same whatever one client's data are: only numbers differ."""

import functools

import numpy as np
import pytest
from fl_sketch.run.loop import Watch

from fl_sketch.config import parse as choices
from fl_sketch.core import trees
from fl_sketch.data import datasets
from fl_sketch.data.examples import Examples
from fl_sketch.run import NotFinite, begin, build, train
from tests.run.configs import config_with

pytestmark = pytest.mark.slow

PRIVATE = {
    "data__clients": 20,
    "cohort__sampling": "poisson",
    "cohort__size": 10,
    "rounds": 6,
    "eval_every": 2,
    "checkpoint_every": 3,
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
    shares = choices.partition_of(config, splits.train.targets, config.seed)
    return shares.of(TARGET)


def with_inputs(value):
    def change(train, places):
        train.inputs[places] = value
        return train

    return change


def other_labels(train, places):
    train.targets[places] = (train.targets[places] + 1) % 10
    return train


def garbage(train, places):
    random = np.random.default_rng(0)
    train.inputs[places] = random.normal(size=train.inputs[places].shape) * 1e6
    return train


def as_they_are(train, places):
    del places
    return train


CHANGES = {
    "NaN": with_inputs(np.nan),
    "infinity": with_inputs(np.inf),
    "1e30": with_inputs(1e30),
    "zero": with_inputs(0.0),
    "other labels": other_labels,
    "garbage": garbage,
}


# What a run may have beside a model: a client's state, a server's, what it looks at.
OPTIONS = {
    "neither": {},
    "memories and watched numbers": {
        "algorithm": "sketched_sgd",
        "privacy__watch": True,
        "privacy__watch_noise": 5.0,
    },
    "corrections and a threshold": {
        "algorithm": "fedgate",
        "server__rate": 0.1,
        "privacy__bound": "adaptive",
        "privacy__quantile_noise": 5.0,
    },
}


def flow(change, **options):
    """Returns everything that happens in a run but for the numbers it releases."""
    splits = datasets.load("digits")
    copy = Examples(splits.train.inputs.copy(), splits.train.targets.copy())
    changed = splits._replace(train=change(copy, owned()))
    config = config_with(**PRIVATE | options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", lambda name, data_dir=None, **_: changed)
        built, events = build(config), []
    progress = train(
        built,
        built.compile(),
        begin(built, config.eval_every),
        checkpoint_every=config.checkpoint_every,
        watch=Watch(
            row=lambda row: events.append(
                ("row", row["round"], tuple(row), row["epsilon"])
            ),
            save=lambda done, progress: events.append(("save", done)),
        ),
    )
    assert trees.finite(progress.state.server.params)
    return events, built.rounds, built.guarantee


@functools.cache
def undisturbed(name):
    return flow(as_they_are, **OPTIONS[name])


@pytest.mark.parametrize("name", CHANGES)
def test_one_client_changes_nothing_of_what_happens(name):
    expected = undisturbed("neither")
    assert [event[:2] for event in expected[0]] == [
        ("row", 2), ("save", 3), ("row", 4), ("row", 6), ("save", 6),
    ]  # fmt: skip
    assert flow(CHANGES[name]) == expected


@pytest.mark.parametrize("options", [name for name in OPTIONS if OPTIONS[name]])
@pytest.mark.parametrize("name", ["NaN", "1e30"])
def test_nor_with_memories_thresholds_and_watched_numbers(name, options):
    expected = undisturbed(options)
    assert flow(CHANGES[name], **OPTIONS[options]) == expected


def test_an_empty_client_changes_nothing_either(monkeypatch):
    expected = undisturbed("neither")
    of, places = choices.partition_of, owned()

    def without(*arguments):
        """What it had is nobody's and comes last: the program is the same."""
        shares = of(*arguments)
        its = np.isin(shares.indices, places)
        indices = np.concatenate([shares.indices[~its], shares.indices[its]])
        starts = shares.starts - len(places) * (np.arange(21) > TARGET)
        return shares._replace(indices=indices, starts=starts)

    monkeypatch.setattr(choices, "partition_of", without)
    monkeypatch.setitem(globals(), "owned", lambda: places)
    assert flow(as_they_are) == expected


def test_where_nobody_is_protected_a_loss_that_is_not_finite_ends_the_run():
    with pytest.raises(NotFinite, match="training loss"):
        flow(
            CHANGES["NaN"],
            privacy__bound="none",
            privacy__target_epsilon=0.0,
            cohort__sampling="everyone",
        )
