"""Public files are read exactly, or refused in one line that names the file."""

import gzip
import os

import numpy as np
import pytest

from fl_sketch.data import datasets, raw
from tests.data import fake_raw
from tests.refusals import refused

pytestmark = pytest.mark.fast

REAL = os.environ.get(raw.VARIABLE)
needs_real = pytest.mark.skipif(not REAL, reason=f"{raw.VARIABLE} is not set")

# Of the originals, from the files as they are distributed.
PIXEL_SUMS = {
    ("mnist", "train"): 1567298545,
    ("mnist", "test"): 264923200,
    ("fashion_mnist", "train"): 3431114169,
    ("fashion_mnist", "test"): 573469082,
    ("cifar10", "test"): 3733375634,
}
COUNTS = {"mnist": 60000, "fashion_mnist": 60000, "cifar10": 50000}


@pytest.fixture(name="folder")
def public_files(tmp_path):
    fake_raw.write(tmp_path)
    return tmp_path


def test_images_and_labels_are_read_in_the_order_of_the_files(tmp_path):
    truth = fake_raw.write(tmp_path)
    for name in ("mnist", "fashion_mnist", "cifar10"):
        splits = datasets.load(name, tmp_path)
        assert splits.classes == 10 and splits.learnt == ()
        for split, part in splits.parts.items():
            images, labels = truth[name, split]
            np.testing.assert_array_equal(part.inputs, images, strict=True)
            np.testing.assert_array_equal(part.targets, labels.astype(np.int32))


def test_sentences_may_stand_before_their_labels_as_in_glue(folder):
    found = datasets.load("sst2", folder)
    assert found.test.inputs[3] == "sentence 3 of test , à la crème"
    assert found.test.targets.tolist() == [0, 1] * 5 and found.classes == 2
    file = folder / "sst2/test.tsv"
    file.write_text("sentence\tlabel\nnot so bad \t1\nbad \t0\n")
    found = datasets.load("sst2", folder)
    assert found.test.inputs.tolist() == ["not so bad ", "bad "]
    assert found.test.targets.tolist() == [1, 0]
    file.write_text("label\tsentence\n1\tgood\ngood\t1\n")
    with refused(match="line 3 of"):
        datasets.load("sst2", folder)


def test_speeches_are_split_within_each_speaker_and_in_time(folder):
    splits = datasets.load("shakespeare", folder)
    # alphabetical: First Citizen, JULIET, ROMEO with 11, 1 and 5 speeches
    assert splits.class_names == ("First Citizen", "JULIET", "ROMEO")
    assert splits.learnt == (("classes", 0),)
    assert np.bincount(splits.train.targets).tolist() == [9, 1, 4]
    assert np.bincount(splits.test.targets, minlength=3).tolist() == [2, 0, 1]
    test = splits.test.inputs
    assert test[1] == "Speech 9 of First Citizen.\nIt has two lines."
    assert {"Speech 10", "Speech 9", "Speech 4"} == {t.split(" of")[0] for t in test}


@pytest.mark.parametrize("name", raw.READERS)
def test_a_missing_file_is_named_with_its_folder(name, folder):
    file = {
        "cifar10": "cifar-10-binary.tar.gz",
        "sst2": "sst2/train.tsv",
        "shakespeare": "shakespeare/input.txt",
    }.get(name, f"{name}/train-labels-idx1-ubyte.gz")
    (folder / file).unlink()
    place, _, last = str(folder / file).rpartition("/")
    with refused(f"{last} in {place}", "docs/data.md", error=FileNotFoundError):
        datasets.load(name, folder)


LABELS, CIFAR = "mnist/t10k-labels-idx1-ubyte.gz", raw.CIFAR
DAMAGED = {
    "cut off": (LABELS, fake_raw.idx(np.zeros(9, np.uint8))[:-4]),
    "no gzip": (LABELS, b"\0\0\x08\1\0\0\0\2\0\1"),
    "too short": (LABELS, gzip.compress(b"\0\0\x08\1\0\0\0\7abc")),
    "of floats": (LABELS, gzip.compress(b"\0\0\x0d\1\0\0\0\1abcd")),
    "fewer labels": (LABELS, fake_raw.idx(np.zeros(3, np.uint8))),
    "labels of 77": (LABELS, fake_raw.idx(np.full(10, 77, np.uint8))),
    "noise": (CIFAR, b"\x1f\x8b noise"),
    "half a record": (CIFAR, fake_raw.tarred({"test_batch.bin": b"1" * 3072})),
    "no test": (CIFAR, fake_raw.tarred({"data_batch_1.bin": b"1" * 3073})),
    "no UTF-8": ("sst2/test.tsv", b"label\tcontent\n1\t\xff\xfe\n"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_by_its_name(folder, case):
    file, content = DAMAGED[case]
    (folder / file).write_bytes(content)
    with refused(file.split("/")[-1].split("-")[0]):
        datasets.load({LABELS: "mnist", CIFAR: "cifar10"}.get(file, "sst2"), folder)


def test_a_gzip_bomb_is_not_unpacked(folder, monkeypatch):
    monkeypatch.setattr(raw, "MOST", 2**20)
    (folder / LABELS).write_bytes(gzip.compress(bytes(2**26)))
    with refused("t10k-labels", "1048576 bytes"):
        datasets.load("mnist", folder)


def test_a_missing_folder_is_named_with_the_way_it_was_given(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    with refused(match=f"--data_dir={gone}", error=FileNotFoundError):
        raw.folder(gone)
    monkeypatch.setenv(raw.VARIABLE, str(gone))
    with refused(match=f"{raw.VARIABLE}={gone}", error=FileNotFoundError):
        raw.folder(None)
    assert raw.folder(tmp_path) == tmp_path
    monkeypatch.delenv(raw.VARIABLE)
    with refused("--data_dir", raw.VARIABLE, error=FileNotFoundError):
        datasets.load("mnist")


@needs_real
@pytest.mark.parametrize("name", COUNTS)
def test_real_pixels_add_up(name):
    splits = datasets.load(name)
    for split, (images, labels) in splits.parts.items():
        if (name, split) in PIXEL_SUMS:
            assert int(images.sum(dtype=np.int64)) == PIXEL_SUMS[name, split]
        assert len(images) == (COUNTS[name] if split == "train" else 10000)
        assert len(images) == len(labels) and set(labels.tolist()) == set(range(10))


@needs_real
def test_real_texts_are_complete():
    parts = datasets.load("sst2").parts.values()
    assert [len(part.inputs) for part in parts] == [67349, 1821]
    play = datasets.load("shakespeare")
    counts = [len(part.inputs) for part in play.parts.values()]
    assert (*counts, play.classes) == (5798, 1299, 299)
