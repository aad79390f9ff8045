"""Your own arrays are read whole, or refused by name."""

import re

import numpy as np
import pytest

from fl_sketch.config import inputs, privacy
from fl_sketch.data import datasets, npz
from fl_sketch.data.examples import Examples
from fl_sketch.data.tokenizer import Table
from fl_sketch.run import prepare
from fl_sketch.run.task import facts_of
from tests.refusals import refused
from tests.run.configs import config_with

pytestmark = pytest.mark.fast

GOOD = {
    "train_inputs": np.arange(12.0).reshape(6, 2),
    "train_targets": np.array([0, 1, 2, 0, 1, 2]),
    "test_inputs": np.ones((2, 2)),
    "test_targets": np.array([0.0, 1.0]),
}
OWNERS = np.array(["cy", "ann", "bo", "ann", "ann", "cy"])
TEXTS = np.array(["to be", "or not", "to be", "that is", "the question", "to die"])


def saved(folder, **changes):
    arrays = {name: array for name, array in (GOOD | changes).items()}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    np.savez(folder / "one.npz", **arrays)
    return datasets.load("npz/one", folder)


def table(name, *values):
    return {name: np.array(values)}


TOKENS = {"train_inputs": np.full((6, 2), 5), "test_inputs": np.full((2, 2), 3)}
WRONG = [
    ({"test_targets": None}, "no test_targets"),
    ({"train_inputs": np.full((6, 2), 1j)}, "train_inputs.*complex128"),
    ({"train_inputs": np.zeros((6, 2), "datetime64[s]")}, "train_inputs.*datetime64"),
    ({"train_inputs": np.zeros((0, 2))}, r"train_inputs.*\(0, 2\)"),
    ({"train_inputs": np.full((6, 2), 1e300)}, r"float32 in train_inputs.*1e\+300 in"),
    ({"train_inputs": np.full((6, 2), 2**40)}, "integers of 32 bits"),
    ({"train_inputs": np.array([["a", "b"]] * 6)}, "one text per example"),
    ({"train_inputs": np.array([{}, 1, 2, 3, 4, 5], object)}, "train_inputs.*objects"),
    ({"train_inputs": np.zeros((96, 8), object)}, "train_inputs.*objects: .*astype"),
    ({"test_inputs": np.ones((2, 3))}, r"inputs.*\(2,\) and .*\(3,"),
    ({"test_inputs": np.ones((2, 2), np.uint8)}, "float32 .* and uint8"),
    (table("test_inputs", [1, np.nan], [1, np.nan]), "test_inputs.*nan in row 0"),
    (table("test_targets", 0, np.nan), "test_targets.*nan in row 1"),
    (table("test_targets", 0, 1, 2), "test targets.*3 for 2"),
    (table("train_targets", 0, 1, 2, 0, 0.7, 2), "integers.*0.7 in row 4"),
    (table("train_targets", 0, 1, -2, 0, 1, 2), ">= 0.*-2 in row 2"),
    (table("train_targets", 0, 1, 2, 0, 1, 2**40), "1099511627776 in row 5"),
    (table("train_targets", 2**32 + 1, 0, 1, 2, 0, 1), "4294967297 in row 0"),
    (table("train_targets", 10**9, 0, 1, 2, 0, 1), "below 16,777,216.*in row 0"),
    (table("train_targets", *"301201"), "train_targets.*U1"),
    (table("train_targets", 1j, 0, 1, 2, 0, 1), "train_targets.*complex"),
    ({"owners": OWNERS[:5]}, r"owners to be 6 .*\(5,\)"),
    ({"owners": np.zeros(6)}, "owners to be 6 .*float64"),
    ({"learnt": np.arange(2)}, "learnt.*int64"),
    ({"class_names": np.arange(3)}, "class_names.*int64"),
    ({"class_names": np.array(["a", "b"])}, "class_names for 3 classes.*2 names"),
    ({"vocabulary": np.array(["a", "b"])}, "integer inputs.*float32"),
    (TOKENS | {"vocabulary": np.array(["a", "b"])}, "tokens up to 5.*2 words"),
    (TOKENS | {"vocabulary": np.array(["a", "b", "a"])}, "each once"),
]


@pytest.mark.parametrize(("arrays", "words"), WRONG, ids=range(len(WRONG)))
def test_what_a_model_would_train_on_wrongly_is_refused(tmp_path, arrays, words):
    with refused("one.npz", match=words):
        saved(tmp_path, **arrays)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (table("train_targets", 1, 2, 3, 1, 2, 3), "are 1 to 3.*4 outputs"),
        (table("test_targets", 0, 3), "test_targets.*class 3, of which training"),
        (table("test_targets", 3, 4), "class 3 and 1 others, of which"),
    ],
)
def test_classes_without_an_example_are_said(tmp_path, targets, words, recwarn):
    if "train_targets" in targets:
        targets = targets | table("test_targets", *targets["train_targets"][1:3])
    saved(tmp_path, **targets)
    assert re.search(words, str(recwarn.pop(UserWarning).message))
    assert not len(recwarn)


def test_nothing_is_said_of_classes_that_are_private_or_rare():
    arrays = GOOD | table("train_targets", 1, 2, 3, 1, 2, 3)
    npz.checked("one", arrays, where="one.npz", finite=False)
    few = GOOD | table("train_targets", 3, 3, 8, 8, 3, 3) | table("test_targets", 3, 8)
    npz.checked("one", few, where="one.npz")
    tokens = np.array([[5, 9]] * 6)
    arrays = {"train_targets": tokens, "test_targets": tokens[:2]}
    npz.checked("one", GOOD | arrays, where="one.npz")


@pytest.mark.parametrize(
    ("kind", "targets", "words"),
    [
        ("labels", [[0, 1], [0.5, 1]], "zeros and ones.*0.5 in row 1"),
        ("numbers", [[0, 1], [np.inf, 1]], "finite.*inf in row 1"),
        ("classes", [[[0]], [[1]]], "test_targets"),
        ("labels", [], "train_targets|test_targets"),
    ],
)
def test_targets_of_another_kind_are_refused(kind, targets, words):
    part = {"inputs": np.ones((2, 2)), "targets": np.array(targets)}
    arrays = {f"{p}_{key}": array for p in npz.PARTS for key, array in part.items()}
    arrays["train_targets"] = arrays["test_targets"][:2]
    with pytest.raises(ValueError, match=words.replace("test_", "t[a-z]+_")):
        npz.checked("npz/x", arrays, where="x", targets=kind)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_only_what_is_trained_on_in_private_may_be_not_finite(part):
    arrays = GOOD | {f"validation_{kind}": GOOD[f"test_{kind}"] for kind in npz.KINDS}
    arrays[f"{part}_inputs"] = np.nan * arrays[f"{part}_inputs"]
    if part == "train":
        splits = npz.checked("npz/x", arrays, where="x", finite=False)
        assert np.isnan(splits.train.inputs).all()
        return
    with refused(f"{part}_inputs", "nan in row 0"):
        npz.checked("npz/x", arrays, where="x", finite=False)


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"one\.npz.*npz/one"):
        datasets.load("npz/one", tmp_path)
    monkeypatch.delenv("FL_SKETCH_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="--data_dir"):
        datasets.load("npz/one")


def test_arrays_that_nothing_reads_are_named(tmp_path):
    with pytest.warns(UserWarning, match="one.npz .*weights, ids"):
        saved(tmp_path, weights=np.ones(6), ids=OWNERS)


def test_kinds_of_arrays_become_those_of_a_device(tmp_path):
    splits = saved(tmp_path)
    assert splits.train.inputs.dtype == np.float32 and splits.classes == 3
    assert splits.learnt == (("classes", 0),)
    np.testing.assert_array_equal(splits.test.targets, np.array([0, 1], np.int32))
    for kind, becomes in ((int, np.int32), (np.uint8, np.uint8), (bool, np.int32)):
        arrays = {"train_inputs": np.ones((6, 5), kind)}
        arrays["test_inputs"] = np.ones((2, 5), kind)
        assert saved(tmp_path, **arrays).train.inputs.dtype == becomes


def test_integers_are_tokens_that_the_vocabulary_has(tmp_path):
    saved(tmp_path, train_inputs=np.full((6, 5), 7), test_inputs=np.full((2, 5), 7))
    config = config_with(data__name="npz/one", data__vocabulary=8)
    assert inputs.splits_of(config, str(tmp_path)).train.inputs.max() == 7
    config.data.vocabulary = 7
    with pytest.raises(ValueError, match="vocabulary=7.*got 7 to 7"):
        inputs.splits_of(config, str(tmp_path))


def test_what_is_saved_is_what_is_read(tmp_path):
    train = Examples(np.ones((6, 2), np.float32), np.arange(6, dtype=np.int32))
    few = Examples(*(array[:2] for array in train))
    npz.save(tmp_path / "one.npz", train, few, OWNERS, few)
    splits = datasets.load("npz/one", tmp_path)
    np.testing.assert_array_equal(splits.train.inputs, train.inputs)
    np.testing.assert_array_equal(splits.validation.targets, [0, 1])
    np.testing.assert_array_equal(splits.owners, [2, 0, 1, 0, 0, 2])


def test_names_of_owners_classes_and_words_are_kept(tmp_path):
    names = np.array(["no", "yes", "maybe"])
    splits = saved(tmp_path, owners=OWNERS, class_names=names)
    assert splits.owner_names == ("ann", "bo", "cy")
    assert splits.class_names == ("no", "yes", "maybe") and splits.tokenizer is None
    numbers = np.array([30, 4, 4, 30, 4, 4])
    assert saved(tmp_path, owners=numbers).owner_names == ("4", "30")
    for marks, found in (None, False), (np.array(["vocabulary"]), True):
        splits = saved(tmp_path, **TOKENS, vocabulary=names, learnt=marks)
        table = Table("words", ("no", "yes", "maybe"), found)
        assert splits.tokenizer == table


def test_a_config_takes_the_owners_and_how_many_they_are(tmp_path):
    saved(tmp_path, owners=OWNERS)
    keys = {"data__name": "npz/one", "data__partition": "natural", "cohort__size": 2}
    setup = prepare(config_with(**keys, data__clients=0), str(tmp_path))
    assert facts_of(setup)["clients"] == setup.config.data.clients == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__clients": 5}, "clients=3 .*got clients=5"),
        ({"data__partition": "iid", "data__clients": 0}, "clients"),
        ({"data__name": "digits", "data__clients": 0}, "owners"),
        ({"cohort__size": 5, "data__clients": 0}, "size.*3"),
    ],
)
def test_owners_that_a_config_cannot_take_are_refused(tmp_path, changes, words):
    saved(tmp_path, owners=OWNERS)
    keys = {"data__name": "npz/one", "data__partition": "natural", "cohort__size": 2}
    with pytest.raises(ValueError, match=words):
        prepare(config_with(**keys | changes), str(tmp_path))


def test_texts_are_read_as_texts_and_their_classes_are_learnt(tmp_path):
    """A vocabulary that is given hides no number of classes that was found."""
    assert saved(tmp_path, train_inputs=TEXTS, test_inputs=TEXTS[:2])
    keys = {"data__name": "npz/one", "data__vocabulary": 99, "data__length": 4}
    keys |= {"data__vocabulary_file": "characters"}
    splits = inputs.splits_of(config_with(**keys), str(tmp_path))
    assert splits.train.inputs.shape == (6, 4) and splits.learnt == (("classes", 0),)
    declared = inputs.splits_of(config_with(**keys, data__classes=3), str(tmp_path))
    assert declared.learnt == ()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data__clients": 0}, "clients"),
        ({"data__classes": 0}, "classes"),
        ({"data__classes": 0, "data__part": "1/2"}, "classes"),
        ({"data__standardise": "train"}, "standardise"),
        ({"data__name": "npz/marked"}, "tags"),
        ({"data__name": "sst2", "data__vocabulary": 8}, "vocabulary_file"),
        ({"data__name": "shakespeare", "data__part": "1/2",
          "data__vocabulary_file": "characters", "data__classes": 0}, "part"),
        ({"data__part": "1/2"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_private_data_decide_nothing_beforehand(tmp_path, changes, key, monkeypatch):
    """Finding P1: what data decide is said, whatever else is declared."""
    from tests.data import fake_raw

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fake_raw.write(tmp_path)
    saved(tmp_path, owners=OWNERS)
    np.savez(tmp_path / "marked.npz", **GOOD, learnt=np.array(["vocabulary", "tags"]))
    keys = {"data__name": "npz/one", "data__clients": 3, "data__classes": 3}
    keys |= {"privacy__bound": "clip", "privacy__noise_multiplier": 2.0}
    config = config_with(**keys | changes)
    splits = inputs.splits_of(config, str(tmp_path))
    if key is None:
        privacy.check_data(config, splits)
        return
    with pytest.raises(ValueError, match=f"{key} to be set in a private run"):
        privacy.check_data(config, splits)
    config.privacy.noise_multiplier = 0.0
    privacy.check_data(config, splits)
