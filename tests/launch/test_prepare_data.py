"""Small files of LEAF, TensorFlow Federated and TFDS become folders of arrays."""

import io
import json

import h5py
import numpy as np
import pytest
from PIL import Image

from fl_sketch.config import inputs, privacy
from fl_sketch.data import datasets
from tests.launching import launch
from tests.refusals import refused
from tests.run.configs import config_with

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)
SENTENCES = {"7": ["how to sort a list", "a list of lists"], "12": ["sort a table"]}


def prepared(form, train, test, out, *more):
    files = [f"--train={train}", *([f"--test={test}"] if test else [])]
    return launch(
        "launch.prepare_data", f"--form={form}", *files, f"--out={out}", *more
    )


def test_both_forms_of_femnist_are_the_same_images(tmp_path):
    drawn = {
        name: (RANDOM.random((count, 28, 28)), RANDOM.integers(0, 62, count))
        for name, count in {"f01": 3, "f00": 2}.items()
    }
    with h5py.File(tmp_path / "emnist.h5", "w") as file:
        for name, (pixels, labels) in drawn.items():
            file[f"examples/{name}/pixels"] = pixels
            file[f"examples/{name}/label"] = labels.astype(np.int32)
    (tmp_path / "leaf").mkdir()
    for name, (pixels, labels) in drawn.items():
        user = {"x": pixels.reshape(len(pixels), -1).tolist(), "y": labels.tolist()}
        content = json.dumps({"user_data": {name: user}})
        (tmp_path / f"leaf/all_data_{name}.json").write_text(content)
    made = []
    for file in ("emnist.h5", "leaf"):
        path = tmp_path / file
        done = prepared("femnist", path, path, tmp_path / f"of_{file}")
        assert done.returncode == 0, done.stderr
        assert "5 training examples of 2 clients" in done.stdout
        made.append(datasets.load(f"npz/of_{file}", tmp_path))
    for part, same in zip(made[0].parts.values(), made[1].parts.values(), strict=True):
        np.testing.assert_array_equal(part.inputs, same.inputs)
        np.testing.assert_array_equal(part.targets, same.targets)
    splits = made[0]
    assert splits.owner_names == ("f00", "f01")
    assert splits.owners.tolist() == [0, 0, 1, 1, 1]
    ink = 1 - np.concatenate([drawn["f00"][0], drawn["f01"][0]])
    assert splits.train.inputs.dtype == np.uint8
    assert np.abs(splits.train.inputs[..., 0] / 255 - ink).max() <= 0.5 / 255
    assert splits.test.targets.tolist() == [*drawn["f00"][1], *drawn["f01"][1]]


@pytest.mark.parametrize("listed", [False, True])
def test_each_word_is_to_be_predicted_from_those_before(tmp_path, listed):
    with h5py.File(tmp_path / "so.h5", "w") as file:
        for name, lines in SENTENCES.items():
            file[f"examples/{name}/tokens"] = [line.encode() for line in lines]
    (tmp_path / "list").write_text("a\nlist\nsort\n")
    vocabulary = f"--vocabulary_file={tmp_path}/list" if listed else "--words=6"
    path, out = tmp_path / "so.h5", tmp_path / "words"
    done = prepared("next_words", path, path, out, vocabulary, "--length=4")
    assert done.returncode == 0, done.stderr
    keys = {"data__name": "npz/words", "data__clients": 2, "data__classes": 6}
    keys |= {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
    config = config_with(**keys, data__vocabulary=6)
    splits = inputs.splits_of(config, str(tmp_path))
    assert splits.owner_names == ("12", "7") and splits.owners.tolist() == [0, 1, 1]
    # "a" and "list" and "sort" are the most frequent: tokens 3, 4 and 5.
    assert splits.tokenizer.units == ("a", "list", "sort")
    found, targets = splits.train
    np.testing.assert_array_equal(found, [[2, 5, 3, 1], [2, 1, 1, 5], [2, 3, 4, 1]])
    np.testing.assert_array_equal(targets, [[5, 3, 1, 0], [1, 1, 5, 3], [3, 4, 1, 1]])
    if listed:
        privacy.check_data(config, splits)
        return
    with refused("vocabulary to be set in a private run"):
        privacy.check_data(config, splits)
    again = prepared("next_words", path, path, out, "--words=99")
    assert again.returncode == 2 and "new folder" in again.stderr


class Other(tfds.core.GeneratorBasedBuilder):
    """Somebody's data set, with the features that a test asks for."""

    VERSION = tfds.core.Version("2.1.0")
    features, examples = None, None

    def _info(self):
        features = tfds.features.FeaturesDict(self.features)
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        return {split: enumerate(self.examples()) for split in ("train", "validation")}

    def _generate_examples(self):
        raise NotImplementedError


def picture(value):
    file = io.BytesIO()
    Image.fromarray(np.full((5, 4, 3), value, np.uint8)).save(file, "png")
    return io.BytesIO(file.getvalue())


LABEL = tfds.features.ClassLabel(names=["no", "yes", "maybe"])
FEATURES = {"picture": tfds.features.Image(shape=(None, None, 3)), "kind": LABEL}
WORDS = {"text": tfds.features.Text(), "kind": LABEL}


@pytest.mark.parametrize("texts", [False, True])
def test_images_and_texts_of_tfds_are_read_without_tensorflow(tmp_path, texts):
    Other.features = WORDS | {"id": np.int64} if texts else FEATURES | {"id": np.int64}

    def examples():
        for label, shade in enumerate((7, 9)):
            own = {"text": "to bé"} if texts else {"picture": picture(shade)}
            yield own | {"kind": label, "id": label}

    Other.examples = staticmethod(examples)
    Other(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    folder = tmp_path / "other/2.1.0"
    done = prepared("tfds", folder, None, tmp_path / "made")
    assert done.returncode == 0, done.stderr
    splits = datasets.load("npz/made", tmp_path)
    assert splits.class_names == ("no", "yes", "maybe")
    assert sorted(splits.test.targets.tolist()) == [0, 1]
    if texts:
        assert splits.train.inputs.tolist() == ["to bé"] * 2
    else:
        assert splits.train.inputs.shape == (2, 5, 4, 3)
        by_label = splits.train.inputs[np.argsort(splits.train.targets)]
        assert by_label[:, 0, 0, 0].tolist() == [7, 9]
    file = folder / "features.json"
    one = "tensorflow_datasets.core.features."
    file.write_text(file.read_text().replace(one, "evil.features."))
    done = prepared("tfds", folder, None, tmp_path / "again")
    assert done.returncode == 2 and "evil.features." in done.stderr
    assert done.stderr.count("\n") == 1
