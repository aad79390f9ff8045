"""Features are a data set like any other, and wrong files are refused in a line."""

import numpy as np
import pytest

from fl_sketch.data import datasets, npz
from fl_sketch.data.examples import Examples, Splits
from fl_sketch.experiments import features
from fl_sketch.run import build
from tests.run.configs import config_with


def images(count, seed):
    """Returns squares that are brighter on the left (0) or on the right (1)."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, 2, count, np.int32)
    inputs = random.integers(0, 100, (count, 8, 8, 1), np.uint8)
    for image, target in zip(inputs, targets, strict=True):
        image[:, 4 * target : 4 * target + 4] += 100
    return Examples(inputs, targets)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, said = tmp_path_factory.mktemp("features"), []
    splits = Splits("squares", images(400, 0), images(100, 1), 2)
    train, test = features.extract(
        splits, width=16, epochs=2, batch=20, say=said.append
    )
    assert len(said) == 2
    assert train.inputs.shape == (200, 16) and test.inputs.shape == (100, 16)
    assert (train.inputs >= 0).all()  # after relu
    np.testing.assert_array_equal(train.targets, splits.train.targets[200:])
    npz.save(path / "squares.npz", train, test)
    return path


def test_a_run_on_features_tells_the_classes_apart(folder):
    config = config_with(
        data__name="npz/squares", rounds=10, eval_every=10, server__rate=0.1
    )
    one = build(config, str(folder))
    compiled = one.compile()
    state, _ = compiled.advance(one.start(), 10)
    assert compiled.evaluate(state)["test_accuracy"] > 0.95


def test_what_was_saved_is_what_is_read(folder):
    splits = datasets.load("npz/squares", folder)
    with np.load(folder / "squares.npz") as file:
        np.testing.assert_array_equal(splits.train.inputs, file["train_inputs"])
    assert splits.classes == 2 and splits.test.targets.dtype == np.int32


def test_private_arrays_must_not_decide_how_many_classes_a_model_has(folder):
    private = {
        "data__name": "npz/squares",
        "cohort__sampling": "poisson",
        "privacy__bound": "clip",
        "privacy__noise_multiplier": 2.0,
    }
    with pytest.raises(ValueError, match="classes to be fixed beforehand"):
        build(config_with(**private), str(folder))
    built = build(config_with(**private, data__classes=2), str(folder))
    assert built.private
    with pytest.raises(ValueError, match="classes >= 2.*got classes=1"):
        build(config_with(**private, data__classes=1), str(folder))
