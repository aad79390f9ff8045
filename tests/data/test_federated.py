"""F-EMNIST and StackOverflow from small files of the forms that users have."""

import json

import h5py
import numpy as np
import pytest

from fl_sketch.data import federated, npz
from launch import import_data
from tests.launching import launch

RANDOM = np.random.default_rng(0)
WRITERS = {"f01": 3, "f00": 2}
QUESTIONS = {
    "7": [("how to sort a list", "python|list"), ("a list of lists", "list")],
    "12": [("sort a table", "sql")],
}


def images(count):
    return RANDOM.random((count, 28, 28)).astype(np.float32), RANDOM.integers(
        0, 62, count
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("federated")
    drawn = {name: images(count) for name, count in WRITERS.items()}
    for part in ("train", "test"):
        with h5py.File(where / f"emnist_{part}.h5", "w") as file:
            for name, (pixels, labels) in drawn.items():
                file[f"examples/{name}/pixels"] = pixels
                file[f"examples/{name}/label"] = labels.astype(np.int32)
        with h5py.File(where / f"so_{part}.h5", "w") as file:
            for name, rows in QUESTIONS.items():
                for key, column in zip(
                    ("tokens", "tags"), zip(*rows, strict=True), strict=True
                ):
                    file[f"examples/{name}/{key}"] = [one.encode() for one in column]
        leaf = where / f"leaf_{part}"
        leaf.mkdir()
        for number, (name, (pixels, labels)) in enumerate(drawn.items()):
            own = {"x": pixels.reshape(len(pixels), -1).tolist(), "y": labels.tolist()}
            text = {
                "users": [name],
                "num_samples": [len(labels)],
                "user_data": {name: own},
            }
            (leaf / f"all_data_{number}.json").write_text(json.dumps(text))
    return where, drawn


def test_both_forms_of_femnist_are_the_same_images(folder):
    where, drawn = folder
    one = federated.femnist(
        str(where / "emnist_train.h5"), str(where / "emnist_test.h5")
    )
    two = federated.femnist(str(where / "leaf_train"), str(where / "leaf_test"))
    assert set(one) == set(two)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    assert one["owners"].tolist() == ["f00"] * 2 + ["f01"] * 3
    expected = np.concatenate([drawn["f00"][0], drawn["f01"][0]])
    assert one["train_inputs"].dtype == np.uint8
    assert np.abs(one["train_inputs"][..., 0] / 255 - (1 - expected)).max() <= 0.5 / 255
    labels = [*drawn["f00"][1], *drawn["f01"][1]]
    assert one["train_targets"].tolist() == labels
    splits = npz.checked("npz/x", one, where="x")
    assert splits.owners.tolist() == [0, 0, 1, 1, 1]
    few = federated.femnist(str(where / "leaf_train"), str(where / "leaf_test"), most=1)
    assert set(few["owners"]) == {"f00"}


def test_each_word_is_to_be_foretold_from_those_before(folder):
    files = [str(folder[0] / f"so_{part}.h5") for part in ("train", "test")]
    found = federated.next_words(*files, words=6, length=4)
    # "a" and "list" and "sort" are the most frequent: tokens 3, 4 and 5.
    assert found["owners"].tolist() == ["12", "7", "7"]
    np.testing.assert_array_equal(
        found["train_inputs"], [[2, 5, 3, 1], [2, 1, 1, 5], [2, 3, 4, 1]]
    )
    np.testing.assert_array_equal(
        found["train_targets"], [[5, 3, 1, 0], [1, 1, 5, 3], [3, 4, 1, 1]]
    )


def test_tags_are_labels_and_words_are_shares(folder):
    files = [str(folder[0] / f"so_{part}.h5") for part in ("train", "test")]
    found = federated.tags(*files, words=3, labels=2)
    np.testing.assert_allclose(
        found["train_inputs"],
        [[1 / 2, 0, 1 / 2], [1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2, 0]],
    )
    assert found["train_targets"].tolist() == [[0, 0], [1, 1], [1, 0]]
    splits = npz.checked("npz/x", found, where="x", targets="labels")
    assert splits.classes == 2


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("none.h5", "a folder of json files or an HDF5 file"),
        ("emnist_train.h5", "to have 'tokens' of user f00, got none"),
        ("leaf_train/all_data_0.json", "to be an HDF5 file with examples"),
        ("empty", "json files with users in"),
        ("broken", "to hold user_data, as LEAF's json files do"),
    ],
)
def test_other_files_are_refused_in_one_line(folder, train, words):
    (folder[0] / "empty").mkdir(exist_ok=True)
    (folder[0] / "broken").mkdir(exist_ok=True)
    (folder[0] / "broken/x.json").write_text("[1, 2")
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        federated.tags(str(folder[0] / train), str(folder[0] / "so_test.h5"), words=3)
    assert "\n" not in str(caught.value)


def test_more_words_than_there_are_are_refused(folder):
    files = [str(folder[0] / f"so_{part}.h5") for part in ("train", "test")]
    with pytest.raises(ValueError, match="words or tags to be kept, got 100"):
        federated.tags(*files, words=100)


@pytest.mark.slow
def test_what_was_imported_is_trained_on(folder, tmp_path):
    words = {
        "femnist": ["--config.model.name=logistic"],
        "next_words": [
            "--config.model.name=language_model",
            "--config.data.vocabulary=6",
        ],
        "tags": ["--config.model.name=logistic", "--config.model.loss=binary"],
    }
    assert set(words) == set(import_data.FORMS)
    for form, keys in words.items():
        stem = "emnist" if form == "femnist" else "so"
        given = [f"--{part}={folder[0]}/{stem}_{part}.h5" for part in ("train", "test")]
        few = ["--words=6", "--length=4", "--labels=2"]
        done = launch("launch.import_data", f"--form={form}", *given, *few,
                      f"--out={tmp_path}/{form}.npz")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "of 2 clients to train on" in done.stdout
        done = launch(
            "launch.train",
            "--config=configs/default.py",
            f"--workdir={tmp_path}/{form}",
            f"--data_dir={tmp_path}",
            f"--config.data.name=npz/{form}",
            "--config.data.partition=natural",
            "--config.data.clients=0",
            "--config.cohort.size=2",
            "--config.rounds=2",
            "--config.sketch.compression=2",
            *keys,
        )
        assert done.returncode == 0, done.stderr
