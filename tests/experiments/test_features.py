"""Features are a data set like any other, and tell the classes apart."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fl_sketch.data import datasets, npz
from fl_sketch.data.examples import Examples, Splits
from fl_sketch.experiments import features
from fl_sketch.models import huggingface
from fl_sketch.models.huggingface import from_torch
from fl_sketch.run import prepare
from tests import pretrained
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
    path, printed = tmp_path_factory.mktemp("features"), []
    splits = Splits("squares", images(400, 0), images(100, 1), 2)
    train, test = features.extract(
        splits, width=16, epochs=2, batch=20, say=printed.append
    )
    assert len(printed) == 2
    assert train.inputs.shape == (200, 16) and test.inputs.shape == (100, 16)
    assert (train.inputs >= 0).all()  # after relu
    np.testing.assert_array_equal(train.targets, splits.train.targets[200:])
    npz.save(path / "squares.npz", train, test)
    return path


def test_a_linear_model_of_features_tells_the_classes_apart(folder):
    splits = datasets.load("npz/squares", folder)
    with np.load(folder / "squares.npz") as file:
        np.testing.assert_array_equal(splits.train.inputs, file["train_inputs"])
    assert splits.classes == 2 and splits.test.targets.dtype == np.int32
    probe = LogisticRegression().fit(splits.train.inputs, splits.train.targets)
    assert probe.score(splits.test.inputs, splits.test.targets) > 0.95


@pytest.mark.parametrize(("classes", "found"), [(0, "classes=0"), (1, "classes=1")])
def test_private_arrays_must_not_decide_how_many_classes_a_model_has(
    folder, classes, found
):
    private = config_with(
        data__name="npz/squares",
        data__classes=classes,
        cohort__sampling="poisson",
        privacy__bound="clip",
        privacy__noise_multiplier=2.0,
    )
    with pytest.raises(ValueError, match=found):
        prepare(private, str(folder))
    private.data.classes = 2
    assert prepare(private, str(folder)).private


def test_a_pretrained_network_gives_features_of_all_images(tmp_path):
    config = from_torch.CONFIG | {"image_size": 32}
    shape = pretrained.write(tmp_path / "shape", config, {})
    module = huggingface.module(str(shape), 5)
    params = jax.jit(module.init)(jax.random.key(0), np.zeros((1, 8, 8, 3)))["params"]
    huggingface.save(params, shape, tmp_path / "folder")
    splits = Splits("squares", images(30, 0), images(10, 1), 2)
    colours = [
        part._replace(inputs=np.repeat(part.inputs, 3, -1)) for part in splits[1:3]
    ]
    splits = splits._replace(train=colours[0], test=colours[1])
    train, test = features.of_pretrained(splits, tmp_path / "folder")
    assert train.inputs.shape == (30, 1280) and test.inputs.shape == (10, 1280)
    module, params, *_ = huggingface.load(tmp_path / "folder")
    alone = module.apply({"params": params}, colours[1].inputs[3:4] / np.float32(255))
    np.testing.assert_allclose(test.inputs[3], alone[0], rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="images"):
        vectors = splits.train._replace(inputs=np.zeros((10, 3)))
        features.of_pretrained(splits._replace(train=vectors), tmp_path / "folder")


def test_texts_and_small_data_sets_are_refused():
    splits = Splits("squares", images(10, 0), images(10, 1), 2)
    with pytest.raises(ValueError, match="batch <= 5 .*got batch=6"):
        features.extract(splits, batch=6)
    vectors = splits.train._replace(inputs=np.zeros((10, 3)))
    with pytest.raises(ValueError, match="images"):
        features.extract(splits._replace(train=vectors), batch=5)
