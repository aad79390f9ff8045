"""Raw files are read exactly, or refused in one line that names the file."""

import io
import os
import pathlib
import shutil
import subprocess
import tarfile

import numpy as np
import pytest

from fl_sketch.data import raw
from tests import pages
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    return folder, fake_raw.write(folder)


@pytest.fixture
def folder(whole, tmp_path):
    """A copy to be spoilt."""
    return pathlib.Path(shutil.copytree(whole[0], tmp_path / "raw"))


def test_the_list_of_checksums_is_what_the_page_of_data_makes(folder):
    command = pages.blocks("sh", "docs/data.md")[0]
    (folder / raw.SUMS).unlink()
    subprocess.run(command, shell=True, cwd=folder, check=True)
    listed = (folder / raw.SUMS).read_text()
    for name, source in raw.SOURCES.items():
        sums = raw.verified(name, folder)
        assert tuple(sums) == source.files
        assert all(f"{digest}  ./{file}" in listed for file, digest in sums.items())


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_strips_may_be_columns_rows_or_tables(columns):
    images = np.arange(10 * 4 * 4 * 3).reshape(10, 4, 4, 3)
    table = images.reshape(10 // columns, columns, 4, 4, 3).swapaxes(1, 2)
    strip = table.reshape(10 // columns * 4, columns * 4, 3)
    np.testing.assert_array_equal(raw._tiles([strip], (4, 4, 3)), images)


def test_the_archive_of_cifar_10s_authors_is_read_where_there_are_no_strips(folder):
    made = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    labels = np.arange(6, dtype=np.uint8)

    def records(part):
        planes = made[part].transpose(0, 3, 1, 2).reshape(-1, 3072)
        return np.concatenate([labels[part, None], planes], axis=1).tobytes()

    parts = {"data_batch_2": np.s_[2:4], "data_batch_1": np.s_[:2],
             "test_batch": np.s_[4:]}  # fmt: skip
    with tarfile.open(folder / raw.CIFAR_BINARY, "w:gz") as archive:
        for name, part in parts.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(records(part))
            archive.addfile(entry, io.BytesIO(records(part)))
    source = raw.SOURCES["cifar10"]
    assert source.present(folder) == ("cifar10_webp.zip",)
    (folder / "cifar10_webp.zip").unlink()
    assert source.present(folder) == ("cifar-10-binary.tar.gz",)
    for split, part in (("train", np.s_[:4]), ("test", np.s_[4:])):
        images, targets = source.read(folder, split)
        np.testing.assert_array_equal(images, made[part])
        np.testing.assert_array_equal(targets, labels[part])


def test_sentences_may_stand_before_their_labels_as_in_glue(folder):
    read, file = raw.SOURCES["sst2"].read, folder / "sst2/test.tsv"
    sentences, labels = read(folder, "test")
    assert sentences[3] == "sentence 3 of test , à la crème"
    assert labels.tolist() == [0, 1] * 5
    file.write_text("sentence\tlabel\nnot so bad \t1\nbad \t0\n")
    sentences, labels = read(folder, "test")
    assert sentences == ["not so bad ", "bad "] and labels.tolist() == [1, 0]
    file.write_text("label\tsentence\n1\tgood\ngood\t1\n")
    with refused(match="line 3 of", error=ValueError):
        read(folder, "test")


def test_speeches_are_split_within_each_speaker_and_in_time(whole):
    read = raw.SOURCES["shakespeare"].read
    train, train_ids = read(whole[0], "train")
    test, test_ids = read(whole[0], "test")
    # alphabetical: First Citizen, JULIET, ROMEO with 11, 1 and 5 speeches
    assert np.bincount(train_ids).tolist() == [9, 1, 4]
    assert np.bincount(test_ids, minlength=3).tolist() == [2, 0, 1]
    assert test[1] == "Speech 9 of First Citizen.\nIt has two lines."
    assert {"Speech 10", "Speech 9", "Speech 4"} == {t.split(" of")[0] for t in test}
    assert not set(train) & set(test)


def test_one_changed_byte_is_refused_with_file_and_both_checksums(folder):
    file = folder / "mnist/train-labels-idx1-ubyte.gz"
    before = raw.verified("mnist", folder)["mnist/train-labels-idx1-ubyte.gz"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    words = rf"{file} .*{before}.*got [0-9a-f]{{64}}"
    with refused(match=words, error=ValueError):
        raw.verified("mnist", folder)
    raw.verified("fashion_mnist", folder)


def test_missing_files_and_lists_are_named(folder):
    (folder / "cifar10_webp.zip").unlink()
    with refused(match="cifar10_webp.zip", error=FileNotFoundError):
        raw.verified("cifar10", folder)
    for content in ("one two three\nfour\n", "", None):
        (folder / raw.SUMS).unlink()
        if content is not None:
            (folder / raw.SUMS).write_text(content)
        error = FileNotFoundError if content is None else ValueError
        with refused(match=raw.SUMS, error=error):
            raw.verified("sst2", folder)


def test_a_missing_folder_is_named_with_the_way_it_was_given(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    with refused(match=f"--data_dir={gone}", error=FileNotFoundError):
        raw.folder(gone)
    monkeypatch.setenv(raw.VARIABLE, str(gone))
    with refused(match=f"{raw.VARIABLE}={gone}", error=FileNotFoundError):
        raw.folder(None)
    assert raw.folder(tmp_path) == tmp_path
    monkeypatch.delenv(raw.VARIABLE)
    assert raw.folder(None) is None


@needs_real
@pytest.mark.parametrize(("name", "split"), PIXEL_SUMS)
def test_real_pixels_add_up(name, split):
    images, labels = raw.SOURCES[name].examples(raw.folder(None), split)
    assert int(images.sum(dtype=np.int64)) == PIXEL_SUMS[name, split]
    assert len(images) == len(labels)
    assert len(images) == (COUNTS[name] if split == "train" else 10000)
    assert set(labels.tolist()) == set(range(10))


@needs_real
def test_real_texts_are_complete():
    folder = raw.folder(None)
    read = raw.SOURCES["sst2"].read
    assert [len(read(folder, s)[0]) for s in ("train", "test")] == [67349, 1821]
    train, ids = raw.SOURCES["shakespeare"].read(folder, "train")
    test, _ = raw.SOURCES["shakespeare"].read(folder, "test")
    assert (len(train), len(test), ids.max() + 1) == (5798, 1299, 299)
