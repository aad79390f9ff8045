"""Texts train as images do: words with labels, characters by who says them."""

import pytest

from fl_sketch.run import from_config
from tests.data import fake_raw
from tests.run.configs import NOISY, config_with, refused

pytestmark = pytest.mark.slow

WORDS = {
    "compute__devices": 1,
    "data__name": "sst2",
    "data__clients": 4,
    "data__length": 8,
    "data__vocabulary": 10,
    "model__name": "transformer",
    "client__steps": 2,
    "client__batch": 4,
    "cohort__size": 2,
}
CHARACTERS = WORDS | {
    "data__name": "shakespeare",
    "data__clients": 3,
    "data__partition": "natural",
    "model__name": "language_model",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    fake_raw.write(folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (WORDS | {"data__vocabulary": 999}, "vocabulary"),
        (WORDS | {"data__length": 0}, "length"),
        (WORDS | {"data__partition": "natural"}, "owners"),
        (WORDS | {"model__name": "lenet"}, "images"),
        (CHARACTERS | {"data__clients": 4}, "clients"),
        ({"model__name": "transformer"}, "tokens"),
    ],
    ids=range(6),
)
def test_what_a_config_may_not_say_of_texts_is_one_line(changes, name, folder):
    with refused(name, error=(ValueError, TypeError)):
        from_config(config_with(**changes), str(folder))


def test_what_private_texts_decide_is_refused_unless_it_was_fixed(folder):
    with refused("vocabulary_file"):
        from_config(config_with(**WORDS | NOISY | {"data__classes": 0}), str(folder))
    fixed = {"data__vocabulary_file": "characters", "data__vocabulary": 99}
    for more in (fixed, {"data__public": True}):
        assert from_config(config_with(**WORDS | NOISY | more), str(folder)).private
