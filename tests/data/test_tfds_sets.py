"""Sets that others prepared with TFDS are read by name, or refused in one line."""

import io
import shutil
import types

import numpy as np
import pytest

tfds = pytest.importorskip("tensorflow_datasets")

from fl_sketch.data import cache, datasets, tfds_sets  # noqa: E402
from tests.data import fake_raw  # noqa: E402
from tests.refusals import refused  # noqa: E402


class Other(tfds.core.GeneratorBasedBuilder):
    """Somebody's data set, with the features and splits that a test asks for."""

    VERSION = tfds.core.Version("2.1.0")
    features, examples, splits, keys = None, None, None, None

    def _info(self):
        features = tfds.features.FeaturesDict(self.features)
        return tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=self.keys
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {split: enumerate(self.examples()) for split in self.splits}

    def _generate_examples(self):
        raise NotImplementedError


def prepared(cache_dir, features, examples, *, keys=None, splits=None):
    """Prepares a set, of which `examples()` are both parts; returns what loads it."""
    Other.features, Other.examples = features, staticmethod(examples)
    Other.keys = keys
    Other.splits = splits or ("train", "validation")
    folder = cache_dir / tfds_sets.FOLDER
    Other(data_dir=folder, file_format="array_record").download_and_prepare()
    return lambda: datasets.load("other", cache_dir=cache_dir)


LABEL = tfds.features.ClassLabel(names=["no", "yes", "maybe"])
IMAGE = tfds.features.Image(shape=(None, None, 3))
VECTOR = tfds.features.Tensor(shape=(2,), dtype=np.float32)


def picture(height):
    return io.BytesIO(fake_raw.webp(np.full((1, height, 4, 3), 9, np.uint8)))


@pytest.fixture
def texts(tmp_path):
    examples = [{"words": "to be", "stars": 4}, {"words": "or not", "stars": 0}]
    features = {"words": tfds.features.Text(), "stars": np.int32}
    return prepared(tmp_path, features, lambda: examples, keys=("words", "stars"))


def test_images_are_read_with_their_declared_classes(tmp_path):
    features = {"picture": IMAGE, "kind": LABEL, "id": np.int64}

    def examples():
        return [{"picture": picture(5), "kind": "yes", "id": n} for n in range(3)]

    splits = prepared(tmp_path, features, examples)()
    assert splits.classes == 3 and splits.test.targets.tolist() == [1, 1, 1]
    assert splits.learnt == () and splits.class_names == ("no", "yes", "maybe")
    assert splits.train.inputs.shape == (3, 5, 4, 3) and splits.train.inputs.max() == 9


def test_texts_are_read_with_the_classes_that_they_show(texts, tmp_path):
    splits = texts()
    assert splits.classes == 5 and splits.learnt == (("classes", 0),)
    assert sorted(splits.train.inputs) == ["or not", "to be"]
    (file,) = tmp_path.rglob("train_targets.npy")
    assert file.is_relative_to(tmp_path / cache.FORMAT / tfds_sets.FOLDER / "other")


@pytest.mark.parametrize(
    ("features", "example", "options", "words"),
    [
        ({"picture": IMAGE}, {"picture": 4}, {}, "label"),
        ({"a": LABEL, "b": LABEL}, {"a": 0, "b": 1}, {}, "label"),
        ({"p": IMAGE, "l": LABEL}, {"p": 4, "l": 1}, {"splits": ["train"]}, "split"),
        ({"x": VECTOR, "l": LABEL}, {"x": np.zeros(2, np.float32), "l": 1},
         {"keys": ("x", "l")}, "Image or Text"),
    ],
)  # fmt: skip
def test_sets_of_another_kind_are_refused(tmp_path, features, example, options, words):
    def examples():
        yield {k: picture(v) if features[k] is IMAGE else v for k, v in example.items()}

    with refused(words):
        prepared(tmp_path, features, examples, **options)()


@pytest.mark.parametrize(
    ("splits", "tested"),
    [("train validation test", "test"), ("validation train", "validation")],
)
def test_a_model_is_tested_on_the_test_set_if_there_is_one(splits, tested):
    info = types.SimpleNamespace(splits=splits.split(), full_name="x")
    assert tfds_sets._test_split(info) == tested


def test_images_of_several_sizes_are_refused(tmp_path):
    def examples():
        return [{"p": picture(height), "l": 0} for height in (4, 5)]

    with refused("one shape"):
        prepared(tmp_path, {"p": IMAGE, "l": LABEL}, examples)()


def test_a_folder_of_somebody_else_runs_none_of_his_code(texts, tmp_path, monkeypatch):
    (file,) = tmp_path.rglob("features.json")
    text = file.read_text()
    feature = "tensorflow_datasets.core.features.text_feature.Text"
    assert feature in text
    file.write_text(text.replace(feature, "evilmod.Feature"))
    (tmp_path / "evilmod.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(tmp_path)
    with refused("features.json", "evilmod.Feature"):
        texts()
    file.write_text("{")
    with refused("features.json"):
        texts()


def test_a_copy_is_verified_and_does_not_outlive_its_data(texts, tmp_path):
    texts()
    (file,) = tmp_path.rglob("train_targets.npy")
    whole = bytearray(file.read_bytes())
    whole[-2] ^= 1
    file.write_bytes(whole)
    with refused(str(file), "remove its folder"):
        texts()
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(info.read_text() + "\n")  # other data: the copy is made again
    assert sorted(texts().train.targets.tolist()) == [0, 4]
    shutil.rmtree(tmp_path / tfds_sets.FOLDER)
    with pytest.raises(FileNotFoundError):
        texts()
