"""Public files are read exactly, or refused in one line that names the file."""

import gzip

import numpy as np
import pytest

from fl_sketch.data import datasets, raw
from tests.data import fake_raw
from tests.refusals import refused

pytestmark = pytest.mark.fast


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


LABELS, CIFAR, SST2 = "mnist/t10k-labels-idx1-ubyte.gz", raw.CIFAR, "sst2/test.tsv"
DAMAGED = [  # None: the file is missing
    (LABELS, None),
    (LABELS, fake_raw.idx(np.zeros(9, np.uint8))[:-4]),
    (LABELS, b"\0\0\x08\1\0\0\0\2\0\1"),  # no gzip
    (LABELS, gzip.compress(b"\0\0\x08\1\0\0\0\7abc")),  # too short
    (LABELS, gzip.compress(b"\0\0\x0d\1\0\0\0\x0a" + bytes(10))),  # of floats
    (LABELS, fake_raw.idx(np.zeros(3, np.uint8))),  # fewer than images
    (LABELS, fake_raw.idx(np.full(10, 77, np.uint8))),
    (LABELS, gzip.compress(bytes(2**26))),  # a bomb
    (CIFAR, None),
    (CIFAR, b"\x1f\x8b noise"),
    (CIFAR, fake_raw.tarred({"test_batch.bin": b"1" * 3072})),  # half a record
    (CIFAR, fake_raw.tarred({"data_batch_1.bin": b"1" * 3073})),  # no test
    (SST2, None),
    (SST2, b"label\tcontent\n1\t\xff\xfe\n"),
    (SST2, b"label\tsentence\n1\tgood\ngood\t1\n"),
    ("shakespeare/input.txt", None),
]


@pytest.mark.parametrize(("file", "content"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_refused_by_its_name(folder, monkeypatch, file, content):
    monkeypatch.setattr(raw, "MOST", 2**20)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    name = "cifar10" if file == CIFAR else file.split("/")[0]
    stem = file.split("/")[-1].split("-")[0]
    with refused(stem, error=(ValueError, FileNotFoundError)):
        datasets.load(name, folder)


def test_a_missing_folder_is_named_with_the_way_it_was_given(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    monkeypatch.setenv(raw.VARIABLE, str(gone))
    for given, words in ((gone, "--data_dir="), (None, f"{raw.VARIABLE}=")):
        with refused(f"{words}{gone}", error=FileNotFoundError):
            raw.folder(given)
    monkeypatch.delenv(raw.VARIABLE)
    for name in ("mnist", "npz/one"):
        with refused("--data_dir", error=FileNotFoundError):
            datasets.load(name)
