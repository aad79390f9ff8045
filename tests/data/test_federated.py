"""F-EMNIST and StackOverflow from small files of the forms that users have."""

import json

import h5py
import numpy as np
import pytest

from fl_sketch.config import inputs, privacy
from fl_sketch.data import federated, npz
from fl_sketch.run import prepare
from launch import import_data
from tests.launching import launch
from tests.refusals import refused
from tests.run.configs import config_with

RANDOM = np.random.default_rng(0)
WRITERS = {"f01": 3, "f00": 2}
QUESTIONS = {
    "7": [("how to sort a list", "python|list"), ("a list of lists", "list")],
    "12": [("sort a table", "sql")],
}


def images(count):
    pixels = RANDOM.random((count, 28, 28)).astype(np.float32)
    return pixels, RANDOM.integers(0, 62, count)


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
                    file[f"examples/{name}/{key}"] = [text.encode() for text in column]
        leaf = where / f"leaf_{part}"
        leaf.mkdir()
        for name, (pixels, labels) in drawn.items():
            user = {"x": pixels.reshape(len(pixels), -1).tolist(), "y": labels.tolist()}
            content = {"users": [name], "user_data": {name: user}}
            (leaf / f"all_data_{name}.json").write_text(json.dumps(content))
    (where / "empty").mkdir()
    (where / "words").write_text("sort\nlist\n")
    (where / "tags").write_text("sql\npython\n")
    return where, drawn


@pytest.fixture(name="so")
def stack_overflow(folder):
    return federated.Files(*(str(folder[0] / f"so_{p}.h5") for p in ("train", "test")))


def test_both_forms_of_femnist_are_the_same_images(folder):
    where, drawn = folder
    forms = ("emnist_train.h5", "emnist_test.h5"), ("leaf_train", "leaf_test")
    files = [federated.Files(*(str(where / name) for name in form)) for form in forms]
    arrays, same = map(federated.femnist, files)
    assert set(arrays) == set(same) == {*npz.ARRAYS, npz.OWNERS}
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], same[name])
    assert arrays["owners"].tolist() == ["f00"] * 2 + ["f01"] * 3
    ink = 1 - np.concatenate([drawn["f00"][0], drawn["f01"][0]])
    assert arrays["train_inputs"].dtype == np.uint8
    assert np.abs(arrays["train_inputs"][..., 0] / 255 - ink).max() <= 0.5 / 255
    labels = [*drawn["f00"][1], *drawn["f01"][1]]
    assert arrays["train_targets"].tolist() == labels
    splits = npz.checked("npz/x", arrays, where="x")
    assert splits.owners.tolist() == [0, 0, 1, 1, 1]
    few = federated.femnist(files[1]._replace(most=1))
    assert set(few["owners"]) == {"f00"}


def test_each_word_is_to_be_predicted_from_those_before(so):
    arrays = federated.next_words(so, words=6, length=4)
    # "a" and "list" and "sort" are the most frequent: tokens 3, 4 and 5.
    assert arrays["owners"].tolist() == ["12", "7", "7"]
    inputs_, targets = arrays["train_inputs"], arrays["train_targets"]
    np.testing.assert_array_equal(inputs_, [[2, 5, 3, 1], [2, 1, 1, 5], [2, 3, 4, 1]])
    np.testing.assert_array_equal(targets, [[5, 3, 1, 0], [1, 1, 5, 3], [3, 4, 1, 1]])
    assert arrays["vocabulary"].tolist() == ["a", "list", "sort"]


def test_tags_are_labels_and_words_are_shares(so):
    arrays = federated.tags(so, words=3, labels=2)
    np.testing.assert_allclose(
        arrays["train_inputs"],
        [[1 / 2, 0, 1 / 2], [1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2, 0]],
    )
    assert arrays["train_targets"].tolist() == [[0, 0], [1, 1], [1, 0]]
    splits = npz.checked("npz/x", arrays, where="x", targets="labels")
    assert splits.classes == len(splits.class_names) == 2


def test_what_was_found_in_the_data_is_marked_and_what_is_listed_is_not(so):
    words, labels = ["sort", "list"], ["sql", "python"]
    for listed in ({}, {"words": words}, {"labels": labels, "words": words}):
        marks = federated.tags(so, **{"words": 3, "labels": 2} | listed)
        expected = ["vocabulary"] * ("words" not in listed)
        expected += ["tags"] * ("labels" not in listed)
        assert list(marks.get("learnt", ())) == expected
    arrays = federated.tags(so, words=words, labels=labels)
    assert arrays["train_targets"].tolist() == [[1, 0], [0, 1], [0, 0]]
    arrays = federated.next_words(so, words=words, length=4)
    assert "learnt" not in arrays
    assert arrays["train_inputs"].tolist()[0] == [2, 3, 1, 1]
    assert federated.next_words(so, words=6)["learnt"].tolist() == ["vocabulary"]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("none.h5", "a folder of json files or an HDF5 file"),
        ("emnist_train.h5", "user f00, got KeyError.*tokens"),
        ("empty", "json files with users in"),
    ],
)
def test_other_files_are_refused_in_one_line(folder, so, train, words):
    with refused(train, match=words, error=(ValueError, FileNotFoundError)):
        federated.tags(so._replace(train=str(folder[0] / train)), words=3)


def test_pixels_and_users_that_would_be_lost_are_refused(folder, tmp_path):
    files = federated.Files(str(tmp_path), str(folder[0] / "leaf_test"))
    ink = {"x": [[200.0] * 784], "y": [1]}
    for file, user in (("a", "f00"), ("b", "f01")):
        content = {"users": [user], "user_data": {user: ink}}
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    with refused("pixels that are not from 0 to 1", "f00"):
        federated.femnist(files)
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text())
    with refused("each user in one file", "f00"):
        federated.femnist(files)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"words": 100}, "vocabulary.*got 100"),
        ({"words": 3, "labels": 9}, "tags.*got 9"),
        ({"words": 0}, "vocabulary=0"),
    ],
)
def test_numbers_of_words_that_there_are_not_are_refused(so, options, words):
    with pytest.raises(ValueError, match=words):
        federated.tags(so, **options)


KEYS = {
    "femnist": {"model__name": "logistic"},
    "next_words": {
        "model__name": "language_model",
        "data__vocabulary": 6,
        "model__width": 8,
    },
    "tags": {"model__name": "logistic", "model__loss": "binary"},
}


@pytest.mark.parametrize("form", KEYS)
def test_what_was_imported_can_be_trained_on(folder, so, tmp_path, form):
    leaf = federated.Files(*(str(folder[0] / f"leaf_{p}") for p in ("train", "test")))
    options = {"next_words": {"words": 6, "length": 4}, "tags": {"words": 6}}
    files, options = (leaf if form == "femnist" else so), options.get(form, {})
    options |= {"labels": 2} if form == "tags" else {}
    npz.write(tmp_path / "own.npz", import_data.FORMS[form][0](files, **options))
    config = config_with(
        data__name="npz/own", data__partition="natural", data__clients=0,
        cohort__size=2, sketch__compression=2, **KEYS[form],
    )  # fmt: skip
    assert prepare(config, str(tmp_path)).config.data.clients == 2


PRIVATE = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("listed", [False, True])
def test_a_private_run_takes_words_and_tags_that_were_listed(folder, tmp_path, listed):
    files = [f"--{part}={folder[0]}/so_{part}.h5" for part in ("train", "test")]
    lists = [f"--vocabulary_file={folder[0]}/words", f"--tags_file={folder[0]}/tags"]
    options = lists if listed else ["--words=6", "--labels=2"]
    out = f"--out={tmp_path}/own.npz"
    done = launch("launch.import_data", "--form=tags", *files, *options, out)
    assert done.returncode == 0, done.stderr
    assert "3 training examples of 2 clients" in done.stdout
    assert ("found in the training data" in done.stdout) != listed
    config = config_with(
        data__name="npz/own", data__clients=2, model__loss="binary", **PRIVATE
    )
    splits = inputs.splits_of(config, str(tmp_path))
    if listed:
        privacy.check_data(config, splits)
        return
    with pytest.raises(ValueError, match="tags to be set in a private run.*npz/own"):
        privacy.check_data(config, splits)
    done = launch("launch.import_data", "--form=tags", *files, "--tags_file=no", out)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "tags_file=no" in done.stderr
