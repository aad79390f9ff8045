"""Arrays of one's own are read whole, or refused by name."""

import numpy as np
import pytest

from fl_sketch.data import datasets, npz
from fl_sketch.data.examples import Examples
from fl_sketch.run import build
from tests.run.configs import config_with

pytestmark = pytest.mark.fast

GOOD = {
    "train_inputs": np.arange(12.0).reshape(6, 2),
    "train_targets": np.array([0, 1, 2, 0, 1, 2]),
    "test_inputs": np.ones((2, 2)),
    "test_targets": np.array([0.0, 1.0]),
}
OWNERS = np.array(["cy", "ann", "bo", "ann", "ann", "cy"])


def saved(folder, **arrays):
    kept = {name: array for name, array in (GOOD | arrays).items() if array is not None}
    np.savez(folder / "one.npz", **kept)
    return datasets.load("npz/one", folder)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"test_targets": None}, "Expected train_inputs.*got no test_targets"),
        ({"train_inputs": np.full((6, 2), 1j)}, "train_inputs of numbers.*complex128"),
        ({"train_inputs": np.zeros((0, 2))}, "one at least.*shape \\(0, 2\\)"),
        ({"test_inputs": np.ones((2, 3))}, "one kind and shape.*\\(2,\\) and .*\\(3,"),
        ({"test_inputs": np.ones((2, 2), np.uint8)}, "float32 .* and uint8"),
        ({"test_targets": np.zeros(3, int)}, "as many test targets.*3 for 2"),
        ({"train_targets": np.array([0, 1, 2, 0, 0.7, 2])}, "whole.*0.7 in row 4"),
        ({"train_targets": np.array([0, 1, -2, 0, 1, 2])}, "from 0 on.*-2 in row 2"),
        ({"train_targets": np.array([0, 1, 2, 0, 1, 2**40])}, "1099511627776 in row 5"),
        ({"test_targets": np.array([0, np.nan])}, "whole.*test_targets.*nan in row 1"),
        ({"test_inputs": np.array([[1, np.nan]] * 2)}, "finite.*test_inputs.*nan.*0"),
        ({"train_inputs": np.full((6, 2), 1e300)}, "finite.*train_inputs.*inf in row"),
        ({"train_inputs": np.full((6, 2), 2**40)}, "integers of 32 bits"),
        ({"owners": OWNERS[:5]}, "owners to be 6 integers or strings.*\\(5,\\)"),
        ({"owners": np.zeros(6)}, "owners to be 6 integers or strings.*float64"),
        ({"train_inputs": np.array([["a", "b"]] * 6)}, "of one text for each example"),
    ],
    ids=range(16),
)
def test_what_a_model_would_train_on_wrongly_is_refused(tmp_path, arrays, words):
    with pytest.raises(ValueError, match=words) as caught:
        saved(tmp_path, **arrays)
    assert "\n" not in str(caught.value) and "one.npz" in str(caught.value)


@pytest.mark.parametrize("content", [b"PK\x03\x04 torn", b""])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "one.npz").write_bytes(content)
    with pytest.raises(ValueError, match="to hold train_inputs.*got") as caught:
        datasets.load("npz/one", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"one\.npz for data\.name=npz/one"):
        datasets.load("npz/one", tmp_path)
    monkeypatch.delenv("FL_SKETCH_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="--data_dir"):
        datasets.load("npz/one")


def test_arrays_that_nothing_reads_are_named(tmp_path):
    with pytest.warns(UserWarning, match="nothing reads weights, ids of .*one.npz"):
        saved(tmp_path, weights=np.ones(6), ids=OWNERS)


def test_kinds_of_arrays_become_those_of_a_device(tmp_path):
    splits = saved(tmp_path)
    assert splits.train.inputs.dtype == np.float32 and splits.classes == 3
    np.testing.assert_array_equal(splits.test.targets, np.array([0, 1], np.int32))
    both = {"train": 6, "test": 2}
    for kind, becomes in ((int, np.int32), (np.uint8, np.uint8), (bool, np.int32)):
        arrays = {f"{part}_inputs": np.ones((n, 5), kind) for part, n in both.items()}
        assert saved(tmp_path, **arrays).train.inputs.dtype == becomes


def test_integers_are_tokens_that_the_vocabulary_has(tmp_path):
    both = {
        f"{part}_inputs": np.full((n, 5), 7) for part, n in (("train", 6), ("test", 2))
    }
    saved(tmp_path, **both)
    own = {"data__name": "npz/one", "data__clients": 2, "cohort__size": 2}
    own |= {"model__name": "transformer", "data__vocabulary": 8}
    assert build(config_with(**own), str(tmp_path)).facts["d"]
    with pytest.raises(ValueError, match="tokens below vocabulary=7.*got 7 to 7"):
        build(config_with(**own | {"data__vocabulary": 7}), str(tmp_path))


def test_what_is_saved_is_what_is_read(tmp_path):
    train = Examples(np.ones((6, 2), np.float32), np.arange(6, dtype=np.int32))
    npz.save(tmp_path / "one.npz", train, Examples(*(a[:2] for a in train)), OWNERS)
    splits = datasets.load("npz/one", tmp_path)
    np.testing.assert_array_equal(splits.train.inputs, train.inputs)
    np.testing.assert_array_equal(splits.owners, [2, 0, 1, 0, 0, 2])


def test_a_config_takes_the_owners_and_how_many_they_are(tmp_path):
    saved(tmp_path, owners=OWNERS)
    own = {"data__name": "npz/one", "data__partition": "natural"}
    few = {"cohort__size": 2, "model__name": "logistic"}
    built = build(config_with(**own, **few, data__clients=0), str(tmp_path))
    assert built.population == built.facts["clients"] == built.config.data.clients == 3
    with pytest.raises(ValueError, match="clients=3, the owners.*or 0.*got clients=5"):
        build(config_with(**own, **few, data__clients=5), str(tmp_path))
    with pytest.raises(ValueError, match="clients.*>= 1|at least.*clients"):
        build(config_with(data__clients=0))
    with pytest.raises(ValueError, match="an npz file with an array of owners"):
        build(config_with(data__partition="natural", data__clients=0))
    with pytest.raises(ValueError, match="size.*3"):  # more than there are, as always
        build(config_with(**own, cohort__size=5, data__clients=0), str(tmp_path))


def test_texts_of_ones_own_are_read_as_texts(tmp_path):
    said = np.array(["to be", "or not", "to be", "that is", "the question", "to die"])
    splits = saved(tmp_path, train_inputs=said, test_inputs=said[:2], owners=OWNERS)
    assert splits.train.inputs.dtype == object
    config = config_with(
        data__name="npz/one", data__partition="natural", data__clients=0,
        data__vocabulary=8, data__length=4, cohort__size=2, model__name="transformer",
    )  # fmt: skip
    assert build(config, str(tmp_path)).population == 3


def test_the_number_of_clients_is_not_learnt_of_private_data(tmp_path):
    saved(tmp_path, owners=OWNERS)
    config = config_with(
        data__name="npz/one", data__partition="natural", data__clients=0,
        data__classes=3, cohort__sampling="poisson", cohort__size=2,
        privacy__bound="clip", privacy__noise_multiplier=2.0, model__name="logistic",
    )  # fmt: skip
    with pytest.raises(ValueError, match="clients to be fixed beforehand"):
        build(config, str(tmp_path))
    config.data.clients = 3
    assert build(config, str(tmp_path)).private
