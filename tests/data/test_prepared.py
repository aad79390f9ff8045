"""Preparing: what is read is what was in the files, whatever happens meanwhile."""

import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

tfds = pytest.importorskip("tensorflow_datasets")

from fl_sketch.data import datasets, prepared, raw  # noqa: E402
from tests.data import fake_raw  # noqa: E402

pytestmark = pytest.mark.slow

needs_real = pytest.mark.skipif(
    not os.environ.get(raw.VARIABLE), reason=f"{raw.VARIABLE} is not set"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Raw files, what is in them, and everything prepared from them."""
    folder, tfds_dir = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("tfds")
    truth = fake_raw.write(folder)
    for name in raw.SOURCES:
        datasets.load(name, folder, tfds_dir=tfds_dir)
    return folder, truth, tfds_dir


@pytest.fixture
def copy(made, tmp_path):
    """Raw files and an empty folder to prepare in."""
    return pathlib.Path(shutil.copytree(made[0], tmp_path / "raw")), tmp_path / "tfds"


def refused(error, words, call):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_images_come_back_exactly_and_in_order(made, name):
    folder, truth, tfds_dir = made
    splits = datasets.load(name, folder, tfds_dir=tfds_dir)
    assert (splits.name, splits.classes) == (name, 10)
    for split, part in (("train", splits.train), ("test", splits.test)):
        np.testing.assert_array_equal(part.inputs, truth[name, split][0])
        np.testing.assert_array_equal(part.targets, truth[name, split][1])
        assert part.inputs.dtype == np.uint8 and part.targets.dtype == np.int32
        assert not part.inputs.flags.writeable


def test_texts_come_back(made):
    folder, _, tfds_dir = made
    for name, classes in (("sst2", 2), ("shakespeare", 3)):
        splits = datasets.load(name, folder, tfds_dir=tfds_dir)
        assert splits.classes == classes
        for split, part in (("train", splits.train), ("test", splits.test)):
            texts, targets = raw.SOURCES[name].read(folder, split)
            assert part.inputs.tolist() == texts
            assert part.targets.tolist() == targets.tolist()


def test_tfds_itself_reads_what_was_prepared(made):
    source = tfds.data_source(
        "fl_sketch/sst2", split="dev", data_dir=made[2], download=False
    )
    assert source[7]["text"].decode() == "sentence 7 of dev , à la crème"
    splits = datasets.load("fl_sketch/mnist:1.0.0", tfds_dir=made[2])
    np.testing.assert_array_equal(splits.test.inputs, made[1]["mnist", "test"][0])


def test_what_is_prepared_needs_no_raw_files(made, monkeypatch, tmp_path):
    monkeypatch.delenv(raw.VARIABLE, raising=False)
    assert len(datasets.load("mnist", tfds_dir=made[2]).train.targets) == fake_raw.TRAIN
    refused(
        FileNotFoundError,
        f"mnist.*--data_dir or set {raw.VARIABLE}",
        lambda: datasets.load("mnist", tfds_dir=tmp_path),
    )


def test_a_corrupt_file_is_refused_even_if_its_data_were_prepared(made, copy):
    folder, _ = copy
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    for tfds_dir in (made[2], copy[1]):
        refused(
            ValueError,
            "t10k-labels-idx1-ubyte.gz to have sha256",
            lambda where=tfds_dir: datasets.load("mnist", folder, tfds_dir=where),
        )
    assert not copy[1].exists()


def test_stale_data_are_refused_and_prepared_again_on_request(copy):
    folder, tfds_dir = copy
    old = datasets.load("sst2", folder, tfds_dir=tfds_dir)
    (folder / "sst2" / "train.tsv").write_text("label\tcontent\n1\tnew\n")
    fake_raw.sign(folder)
    refused(
        ValueError,
        "sst2.*other checksums.*--overwrite",
        lambda: datasets.load("sst2", folder, tfds_dir=tfds_dir),
    )
    prepared.prepare("sst2", folder, tfds_dir, overwrite=True)
    new = datasets.load("sst2", folder, tfds_dir=tfds_dir)
    assert new.train.inputs.tolist() == ["new"]
    assert len(old.train.inputs) == fake_raw.TEST  # still mapped, still whole
    assert len(list((tfds_dir / "arrays").rglob("train_inputs.npy"))) == 1


def test_arrays_do_not_outlive_their_data(copy, monkeypatch):
    monkeypatch.delenv(raw.VARIABLE, raising=False)
    folder, tfds_dir = copy
    datasets.load("mnist", folder, tfds_dir=tfds_dir)
    (arrays,) = (tfds_dir / "arrays").rglob("train_inputs.npy")
    shutil.rmtree(tfds_dir / "fl_sketch")
    refused(
        FileNotFoundError,
        "--data_dir",
        lambda: prepared.prepare("mnist", None, tfds_dir),
    )
    datasets.load("mnist", folder, tfds_dir=tfds_dir)
    (again,) = (tfds_dir / "arrays").rglob("train_inputs.npy")
    assert again.parent != arrays.parent and not arrays.exists()


def test_a_spoilt_copy_is_named(copy):
    folder, tfds_dir = copy
    datasets.load("sst2", folder, tfds_dir=tfds_dir)
    (file,) = (tfds_dir / "arrays").rglob("train_inputs.npy")
    file.write_bytes(file.read_bytes()[:-1])
    refused(
        ValueError,
        f"{file}.*remove",
        lambda: datasets.load("sst2", folder, tfds_dir=tfds_dir),
    )


def test_a_prepared_folder_may_be_read_only(copy):
    folder, tfds_dir = copy
    datasets.load("mnist", folder, tfds_dir=tfds_dir)
    shutil.rmtree(tfds_dir / "locks")
    datasets.load("mnist", folder, tfds_dir=tfds_dir)
    assert not (tfds_dir / "locks").exists()  # nothing is written any more


KILLED = """
import os, signal, sys
from fl_sketch.data import {module}
works, calls = {module}.{function}, []
def fatal(*arguments):
    calls.append(1)
    if len(calls) > {times}:
        os.kill(os.getpid(), signal.SIGKILL)
    return works(*arguments)
{module}.{function} = fatal
from fl_sketch.data import datasets
datasets.load("mnist", sys.argv[1], tfds_dir=sys.argv[2])
"""


@pytest.mark.parametrize(
    ("module", "function", "times"),
    [("builders", "_png", 35), ("decoding", "decoded", 1), ("prepared", "_save", 3)],
)
def test_a_killed_preparation_leaves_nothing_that_looks_finished(
    made, copy, module, function, times
):
    folder, tfds_dir = copy
    code = KILLED.format(module=module, function=function, times=times)
    done = subprocess.run([sys.executable, "-c", code, folder, tfds_dir])
    assert done.returncode == -signal.SIGKILL
    assert not list((tfds_dir / "arrays").glob("*/*/*/????????????????"))
    splits = datasets.load("mnist", folder, tfds_dir=tfds_dir)
    np.testing.assert_array_equal(splits.train.inputs, made[1]["mnist", "train"][0])
    left = [path for path in tfds_dir.rglob("*") if "incomplete" in path.name]
    left += list((tfds_dir / "arrays").rglob("finished"))
    assert not left


def _load(folder, tfds_dir, queue):
    queue.put(int(datasets.load("mnist", folder, tfds_dir=tfds_dir).train.inputs.sum()))


def test_processes_that_start_together_prepare_once(made, copy):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_load, args=(*copy, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    sums = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert sums == {int(made[1]["mnist", "train"][0].sum())}


class Other(tfds.core.GeneratorBasedBuilder):
    """Somebody's data set, with what features and splits a test asks for."""

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


def other(tmp_path, features, examples, *, file_format="array_record", **changes):
    Other.features, Other.examples = features, staticmethod(examples)
    settings = {"splits": ("train", "validation"), "keys": None} | changes
    Other.splits, Other.keys = settings["splits"], settings["keys"]
    builder = Other(data_dir=tmp_path, file_format=file_format)
    builder.download_and_prepare()
    return lambda: datasets.load("other", tfds_dir=tmp_path)


LABEL = tfds.features.ClassLabel(names=["no", "yes", "maybe"])
IMAGE = tfds.features.Image(shape=(None, None, 3))


def picture(height):
    return fake_raw.io.BytesIO(fake_raw.webp(np.full((1, height, 4, 3), 9, np.uint8)))


def test_any_prepared_image_set_is_read_by_its_name(tmp_path):
    def examples():
        return [{"picture": picture(5), "kind": "maybe", "id": n} for n in range(3)]

    features = {"picture": IMAGE, "kind": LABEL, "id": np.int64}
    splits = other(tmp_path, features, examples)()
    assert splits.classes == 3 and splits.test.targets.tolist() == [2, 2, 2]
    assert splits.train.inputs.shape == (3, 5, 4, 3) and splits.train.inputs.max() == 9


def test_any_prepared_text_set_is_read_by_its_name(tmp_path):
    examples = [{"words": "to be", "stars": 4}, {"words": "or not", "stars": 0}]
    features = {"words": tfds.features.Text(), "stars": np.int32}
    splits = other(tmp_path, features, lambda: examples, keys=("words", "stars"))()
    assert splits.classes == 5 and sorted(splits.train.inputs) == ["or not", "to be"]


@pytest.mark.parametrize(
    ("features", "example", "changes", "words"),
    [
        ({"picture": IMAGE}, {"picture": 4}, {}, "one image or one text and one label"),
        ({"a": LABEL, "b": LABEL}, {"a": 0, "b": 1}, {}, "one image or one text"),
        ({"p": IMAGE, "l": LABEL}, {"p": 4, "l": 1}, {"splits": ("train",)}, "a split"),
        (
            {"x": tfds.features.Tensor(shape=(2,), dtype=np.float32), "l": LABEL},
            {"x": np.zeros(2, np.float32), "l": 1},
            {"keys": ("x", "l")},
            "kind Image or Text",
        ),
    ],
)
def test_sets_of_another_kind_get_one_line(tmp_path, features, example, changes, words):
    def examples():
        yield {k: picture(v) if features[k] is IMAGE else v for k, v in example.items()}

    refused(ValueError, words, other(tmp_path, features, examples, **changes))


def test_images_of_several_sizes_get_one_line(tmp_path):
    def examples():
        return [{"p": picture(height), "l": 0} for height in (4, 5)]

    refused(
        ValueError, "one shape", other(tmp_path, {"p": IMAGE, "l": LABEL}, examples)
    )


def test_the_default_folder_is_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert prepared.cache_folder(None) == tmp_path / "fl_sketch" / "tfds"
    monkeypatch.delenv("XDG_CACHE_HOME")
    home = pathlib.Path.home() / ".cache" / "fl_sketch" / "tfds"
    assert prepared.cache_folder(None) == home


@needs_real
def test_real_images_go_through_tfds_and_back(tmp_path):
    """Some of MNIST, whose files other tests read whole."""
    images, labels = raw.SOURCES["mnist"].read(raw.folder(None), "test")
    folder, tfds_dir = tmp_path / "raw", tmp_path / "tfds"
    (folder / "mnist").mkdir(parents=True)
    parts = {"train": slice(4000), "t10k": slice(4000, 5000)}
    for stem, part in parts.items():
        for kind, array in (("images-idx3", images[..., 0]), ("labels-idx1", labels)):
            path = folder / "mnist" / f"{stem}-{kind}-ubyte.gz"
            path.write_bytes(fake_raw.idx(array[part].astype(np.uint8)))
    fake_raw.sign(folder)
    begin = time.perf_counter()
    splits = datasets.load("mnist", folder, tfds_dir=tfds_dir)
    first = time.perf_counter() - begin
    found = zip((splits.train, splits.test), parts.values(), strict=True)
    for split, part in found:
        np.testing.assert_array_equal(split.inputs, images[part])
        np.testing.assert_array_equal(split.targets, labels[part])
    begin = time.perf_counter()
    datasets.load("mnist", folder, tfds_dir=tfds_dir)
    assert time.perf_counter() - begin < first / 5


def test_a_folder_of_somebody_else_runs_none_of_his_code(tmp_path, monkeypatch):
    example = {"words": "to be", "stars": 4}
    features = {"words": tfds.features.Text(), "stars": np.int32}
    load = other(tmp_path, features, lambda: [example], keys=("words", "stars"))
    (file,) = tmp_path.rglob("features.json")
    text = file.read_text()
    assert "tensorflow_datasets.core.features." in text
    own = "tensorflow_datasets.core.features.text_feature.Text"
    file.write_text(text.replace(own, "evilmod.Feature"))
    (tmp_path / "evilmod.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match="features.json to name .* got evilmod.Feature"
    ):
        load()
    file.write_text("{")
    with pytest.raises(ValueError, match="features.json to be whole"):
        load()


def test_a_byte_of_a_prepared_array_that_changed_is_noticed(tmp_path):
    example = {"words": "to be", "stars": 4}
    features = {"words": tfds.features.Text(), "stars": np.int32}
    load = other(tmp_path, features, lambda: [example], keys=("words", "stars"))
    load()
    (file,) = tmp_path.rglob("train_targets.npy")
    whole = bytearray(file.read_bytes())
    whole[-2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(
        ValueError, match="train_targets.npy as it was prepared"
    ) as found:
        load()
    assert "remove its folder, it is a copy" in str(found.value)
    shutil.rmtree(file.parent)
    assert load().train.targets.tolist() == [4]
