"""Your own arrays are read whole, from a file or a folder, or refused by name."""

import numpy as np
import pytest

from fl_sketch.config import inputs, privacy
from fl_sketch.data import datasets, npz
from fl_sketch.data.tokenizer import Table
from tests.data import fake_raw
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
TEXTS = np.array(["to be", "or not", "to bé", "that is", "the question", "to die"])
TOKENS = {"train_inputs": np.full((6, 2), 5), "test_inputs": np.full((2, 2), 3)}


def saved(folder, path="one.npz", **changes):
    arrays = {key: one for key, one in (GOOD | changes).items() if one is not None}
    npz.write(folder / path, arrays)
    return datasets.load("npz/one", folder)


LABELS = {"train_targets": np.array([[0, 1]] * 5 + [[0.5, 1]])}
NUMBERS = {"train_targets": np.array([[0, 1]] * 5 + [[np.inf, 1]])}
# Arrays, the kind of the targets, what the line says.
WRONG = [
    ({"test_targets": None}, "classes", "no test_targets"),
    ({"train_inputs": np.full((6, 2), 1j)}, "classes", "complex128"),
    ({"train_inputs": np.full((6, 2), 1e300)}, "classes", "1e+300"),
    ({"train_inputs": np.full((6, 2), 2**40)}, "classes", "32 bits"),
    ({"test_inputs": np.ones((2, 3))}, "classes", "(3,)"),
    ({"test_inputs": np.array([[1, np.nan]] * 2)}, "classes", "nan in row 0"),
    ({"test_targets": np.arange(3)}, "classes", "3 for 2"),
    ({"train_targets": np.array([0, 1, 2, 0, 0.7, 2])}, "classes", "0.7 in row 4"),
    ({"train_targets": np.array([10**9, 0, 1, 2, 0, 1])}, "classes", "16,777,216"),
    ({"train_targets": np.array([*"301201"])}, "classes", "U1"),
    ({"owners": OWNERS[:5]}, "classes", "(5,)"),
    ({"class_names": np.array(["a", "b"])}, "classes", "2 names"),
    ({"vocabulary": np.array(["a", "b"])}, "classes", "float32"),
    (TOKENS | {"vocabulary": np.array(["a", "b"])}, "classes", "2 words"),
    (LABELS, "labels", "0.5 in row 5"),
    (NUMBERS, "numbers", "inf in row 5"),
]


@pytest.mark.parametrize(("arrays", "kind", "words"), WRONG, ids=range(len(WRONG)))
def test_what_a_model_would_train_on_wrongly_is_refused(arrays, kind, words):
    arrays = GOOD | arrays
    arrays = {key: array for key, array in arrays.items() if array is not None}
    with refused("in a table", words):
        npz.checked("npz/x", arrays, where="a table", targets=kind)


@pytest.mark.parametrize("label", [7, -1, 10**9, 0.7, np.nan, np.inf])
def test_no_label_of_a_client_is_told_of_in_a_private_run(label):
    arrays = GOOD | {"train_targets": np.array([0, 1, 2, label, 1, 2])}
    splits = npz.checked("table", arrays, where="table", finite=False)
    known = datasets.with_classes(splits, 3, finite=False)
    assert known.classes == 3 and not 0 <= known.train.targets[3] < 3
    with pytest.raises(ValueError):
        whole = npz.checked("table", arrays, where="table")
        datasets.with_classes(whole, 3)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_only_what_is_trained_on_in_private_may_be_not_finite(part):
    arrays = GOOD | {f"validation_{kind}": GOOD[f"test_{kind}"] for kind in npz.KINDS}
    arrays[f"{part}_inputs"] = np.nan * arrays[f"{part}_inputs"]
    if part == "train":
        splits = npz.checked("npz/x", arrays, where="x", finite=False)
        assert np.isnan(splits.train.inputs).all()
        return
    with refused(f"{part}_inputs"):
        npz.checked("npz/x", arrays, where="x", finite=False)


def test_types_of_arrays_become_those_of_a_device(tmp_path):
    with pytest.warns(UserWarning, match="one.npz .*weights"):  # which nothing reads
        splits = saved(tmp_path, weights=np.ones(6))
    assert splits.train.inputs.dtype == np.float32 and splits.classes == 3
    assert splits.learnt == (("classes", 0),)
    np.testing.assert_array_equal(splits.test.targets, np.array([0, 1], np.int32))
    for kind, becomes in ((int, np.int32), (np.uint8, np.uint8), (bool, np.int32)):
        arrays = {"train_inputs": np.ones((6, 5), kind)}
        arrays["test_inputs"] = np.ones((2, 5), kind)
        assert saved(tmp_path, **arrays).train.inputs.dtype == becomes


def test_a_folder_has_the_arrays_of_a_file_mapped_into_memory(tmp_path):
    own = {"owners": OWNERS, "class_names": np.array(["no", "yes", "é"])}
    own["train_inputs"] = GOOD["train_inputs"].astype(np.float32)
    file = saved(tmp_path, **own)
    (tmp_path / "one.npz").unlink()
    folder = saved(tmp_path, "one", **own)
    for name, part in file.parts.items():
        for array, same in zip(part, folder.parts[name], strict=True):
            np.testing.assert_array_equal(array, same, strict=True)
    np.testing.assert_array_equal(file.owners, folder.owners)
    assert file[6:] == folder[6:] and file.class_names[2] == "é"
    base = folder.train.inputs
    while not isinstance(base, np.memmap):
        base = base.base
    assert not folder.train.inputs.flags.writeable
    np.save(tmp_path / "one/test_inputs.npy", np.array([{}, {}]), allow_pickle=True)
    with refused("test_inputs in", "one"):
        datasets.load("npz/one", tmp_path)


def test_names_of_owners_classes_and_words_may_be_strings_or_bytes(tmp_path):
    names, words = np.array(["no", "yes", "maybe"]), ("no", "yes", "maybe")
    for kind in ("U", "S"):
        own = {"owners": OWNERS.astype(kind), "class_names": names.astype(kind)}
        splits = saved(tmp_path, **own)
        assert splits.owner_names == ("ann", "bo", "cy")
        assert splits.class_names == words and splits.tokenizer is None
        marks = {"vocabulary": names.astype(kind), "learnt": np.array(["vocabulary"])}
        splits = saved(tmp_path, **TOKENS, **marks)
        assert splits.tokenizer == Table("words", words, found=True)
    coded = np.char.encode(TEXTS, "utf-8")
    splits = saved(tmp_path, train_inputs=coded, test_inputs=coded[:2])
    assert splits.train.inputs.tolist() == TEXTS.tolist()
    numbers = np.array([30, 4, 4, 30, 4, 4])
    assert saved(tmp_path, owners=numbers).owner_names == ("4", "30")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data__clients": 0}, "clients"),
        ({"data__classes": 0, "data__part": "1/2"}, "classes"),
        ({"data__standardise": "train"}, "standardise"),
        ({"data__name": "npz/marked"}, "tags"),
        ({"data__name": "sst2", "data__vocabulary": 8}, "vocabulary_file"),
        ({"data__name": "shakespeare", "data__part": "1/2",
          "data__vocabulary_file": "characters", "data__classes": 0}, "part"),
        ({"data__part": "1/2"}, None),
    ],
)  # fmt: skip
def test_private_data_decide_nothing_beforehand(tmp_path, changes, key):
    fake_raw.write(tmp_path)
    saved(tmp_path, owners=OWNERS)
    marks = {"learnt": np.array(["vocabulary", "tags"])}
    npz.write(tmp_path / "marked.npz", GOOD | marks)
    keys = {"data__name": "npz/one", "data__clients": 3, "data__classes": 3}
    keys |= {"privacy__bound": "clip", "privacy__noise_multiplier": 2.0}
    config = config_with(**keys | changes)
    splits = inputs.splits_of(config, str(tmp_path))
    if key is None:
        privacy.check_data(config, splits)
        return
    with refused(f"{key} to be set in a private run"):
        privacy.check_data(config, splits)
    config.privacy.noise_multiplier = 0.0
    privacy.check_data(config, splits)
