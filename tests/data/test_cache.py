"""What is read from the cache is what was in the files, whatever happens meanwhile."""

import pathlib
import shutil
import signal

import numpy as np
import pytest

from fl_sketch.core import files
from fl_sketch.data import cache, datasets, raw
from tests.data import fake_raw
from tests.launching import Started, launch_python
from tests.refusals import refused


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Raw files, what is in them, and a cache of all of them."""
    folder, cache_dir = (tmp_path_factory.mktemp(name) for name in ("raw", "cache"))
    truth = fake_raw.write(folder)
    for name in raw.SOURCES:
        datasets.load(name, folder, cache_dir=cache_dir)
    return folder, truth, cache_dir


@pytest.fixture
def copy(made, tmp_path):
    """Raw files, a cache of SST-2, and the folder of its arrays."""
    folder = pathlib.Path(shutil.copytree(made[0], tmp_path / "raw"))
    datasets.load("sst2", folder, cache_dir=tmp_path / "cache")
    return folder, tmp_path / "cache", cache.folder(tmp_path / "cache", "sst2")


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_images_come_back_exactly_and_in_order(made, name):
    folder, truth, cache_dir = made
    splits = datasets.load(name, folder, cache_dir=cache_dir)
    assert (splits.name, splits.classes, splits.learnt) == (name, 10, ())
    for split in ("train", "test"):
        part = getattr(splits, split)
        np.testing.assert_array_equal(part.inputs, truth[name, split][0])
        np.testing.assert_array_equal(part.targets, truth[name, split][1])
        assert part.inputs.dtype == np.uint8 and part.targets.dtype == np.int32
        assert not part.inputs.flags.writeable


@pytest.mark.parametrize(("name", "classes"), [("sst2", 2), ("shakespeare", 3)])
def test_texts_come_back(made, name, classes):
    folder, _, cache_dir = made
    splits = datasets.load(name, folder, cache_dir=cache_dir)
    assert splits.classes == classes
    assert splits.learnt == ((("classes", 0),) if name == "shakespeare" else ())
    for split in ("train", "test"):
        part = getattr(splits, split)
        texts, targets = raw.SOURCES[name].read(folder, split)
        assert part.inputs.dtype == object and part.inputs.tolist() == texts
        assert part.targets.tolist() == targets.tolist()


@pytest.mark.parametrize(
    ("name", "count", "some"),
    [
        ("mnist", 0, ()),
        ("fashion_mnist", 10, ("t-shirt", "trouser")),
        ("cifar10", 10, ("airplane", "automobile")),
        ("sst2", 2, ("negative", "positive")),
        ("shakespeare", 3, ("First Citizen", "JULIET", "ROMEO")),
    ],
)
def test_classes_and_speakers_have_names_without_the_raw_files(
    made, monkeypatch, name, count, some
):
    monkeypatch.delenv(raw.VARIABLE, raising=False)
    names = datasets.load(name, cache_dir=made[2]).class_names
    assert len(names) == count and names[: len(some)] == some


def test_what_is_in_the_cache_needs_no_raw_files(made, monkeypatch, tmp_path):
    monkeypatch.delenv(raw.VARIABLE, raising=False)
    train = datasets.load("mnist", cache_dir=made[2]).train
    assert len(train.targets) == fake_raw.TRAIN
    words = f"mnist.*--data_dir.*{raw.VARIABLE}"
    with refused(match=words, error=FileNotFoundError):
        datasets.load("mnist", cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_corrupt_file_is_refused_although_the_cache_is_whole(made, copy, tmp_path):
    folder = copy[0]
    (folder / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    for cache_dir in (made[2], tmp_path / "new"):
        words = "t10k-labels-idx1-ubyte.gz to have sha256"
        with refused(match=words, error=ValueError):
            datasets.load("mnist", folder, cache_dir=cache_dir)
    assert not (tmp_path / "new").exists()


def test_files_that_changed_are_read_again(copy):
    folder, cache_dir, arrays = copy
    old = datasets.load("sst2", folder, cache_dir=cache_dir)
    (folder / "sst2/train.tsv").write_text("label\tcontent\n1\tnew\n")
    fake_raw.sign(folder)
    new = datasets.load("sst2", folder, cache_dir=cache_dir)
    assert new.train.inputs.tolist() == ["new"]
    assert old.train.targets.tolist() == [0, 1] * 5  # still mapped, still whole
    assert cache.origin(arrays) == raw.verified("sst2", folder)


@pytest.mark.parametrize("name", ["train_inputs.npy", "test_targets.npy", cache.SUMS])
@pytest.mark.parametrize("fault", ["flipped", "torn", "gone"])
def test_a_spoilt_copy_is_named(copy, name, fault):
    folder, cache_dir, arrays = copy
    content = bytearray((arrays / name).read_bytes())
    content[-3] ^= 1
    (arrays / name).write_bytes(content if fault == "flipped" else content[:-9])
    if fault == "gone":
        (arrays / name).unlink()
    if fault == "gone" and name == cache.SUMS:
        datasets.load("sst2", folder, cache_dir=cache_dir)  # is written again
        assert cache.origin(arrays)
        return
    with refused(match=name, error=(ValueError, OSError)):
        datasets.load("sst2", folder, cache_dir=cache_dir)
    for content in ("[]", "{}", '{"origin": 3, "sha256": {}}', "\0"):
        (arrays / cache.SUMS).write_text(content)
        with refused(match=cache.SUMS, error=ValueError):
            datasets.load("sst2", folder, cache_dir=cache_dir)


def test_a_cache_that_is_whole_is_only_read(copy):
    folder, cache_dir, arrays = copy
    for lock in arrays.parent.glob(".*.lock"):
        lock.unlink()
    datasets.load("sst2", folder, cache_dir=cache_dir)
    assert [path.name for path in arrays.parent.iterdir()] == ["sst2"]


def test_a_cache_that_cannot_be_written_is_named(made, tmp_path):
    (tmp_path / "file").write_text("")
    words = f"cache_dir to be writable.*{tmp_path}"
    with refused(match=words, error=ValueError):
        datasets.load("sst2", made[0], cache_dir=tmp_path / "file")


KILLED = """
import os, signal
from fl_sketch.data import cache, datasets
def fatal(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
cache.{what} = fatal
datasets.load("mnist", {raw!r}, cache_dir={cache!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["np.save", "files.digest", "files.write_text", "pathlib.Path.rename"]
)
def test_a_killed_process_leaves_nothing_that_looks_finished(made, tmp_path, what):
    code = KILLED.format(what=what, raw=str(made[0]), cache=str(tmp_path))
    assert launch_python("-c", code).returncode == -signal.SIGKILL
    folder = cache.folder(tmp_path, "mnist")
    assert cache.origin(folder) is None
    splits = datasets.load("mnist", made[0], cache_dir=tmp_path)
    np.testing.assert_array_equal(splits.train.inputs, made[1]["mnist", "train"][0])
    assert {path.name for path in folder.parent.iterdir()} == {"mnist", ".mnist.lock"}


TOGETHER = """
import time
from fl_sketch.data import cache, datasets
from tests.refusals import refused
write = cache._write
def slow(*arguments):
    time.sleep(0.5)
    print("written", flush=True)
    write(*arguments)
cache._write = slow
splits = datasets.load("mnist", {raw!r}, cache_dir={cache!r})
print(splits.train.inputs.sum())
"""


@pytest.mark.slow
def test_processes_that_start_together_write_once(made, tmp_path):
    code = TOGETHER.format(raw=str(made[0]), cache=str(tmp_path))
    with Started("-c", code) as first, Started("-c", code) as second:
        codes = [first.wait(), second.wait()]
        printed = first.said()[0] + second.said()[0]
    assert codes == [0, 0] and printed.count("written") == 1
    assert printed.count(str(made[1]["mnist", "train"][0].sum())) == 2


def test_a_disk_that_is_full_leaves_no_litter(made, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.np, "save", full)
    with pytest.raises((ValueError, OSError), match="No space left"):
        datasets.load("mnist", made[0], cache_dir=tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.suffix not in ("", ".lock")]


def test_the_default_folder_is_in_the_cache_of_the_user():
    assert cache.root(None) == files.user_cache()
    assert cache.folder(None, "mnist").parts[-2:] == (cache.FORMAT, "mnist")
