"""Broken files: each is refused by its name, without a traceback.

None is unpacked that would fill the memory.
"""

import gzip
import io
import json
import shutil
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from PIL import Image

from fl_sketch.data import datasets, federated, npz, raw
from fl_sketch.run import run
from fl_sketch.workdir import weights
from tests.data import fake_raw
from tests.refusals import refused
from tests.run.configs import config_with

ROOM = 50e6  # bytes that a file which is refused may take


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return file.getvalue()


def npy(shape, kind="<f4", content=b""):
    """Returns an npy file that claims a shape."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    head = head.ljust(117) + "\n"
    return (
        b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + content
    )


WHOLE = zipped(train_inputs__npy=npy((2, 2), content=bytes(16)))


def picture(form, size=(32, 64)):
    file = io.BytesIO()
    Image.new("RGB", size).save(file, form)
    return file.getvalue()


def tarred(**members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


IDX, STRIPS = "mnist/t10k-labels-idx1-ubyte.gz", "cifar10_webp.zip"
GOOD = {"test_labels__u8": b"\0\1", "test_000__webp": picture("webp")}


def strips(changes):
    """Returns an archive of strips in which something is changed."""
    return STRIPS, zipped(**GOOD | changes), "cifar10"


RAW = {  # file: what it holds, of which data set
    "idx, empty": (IDX, b"", "mnist"),
    "idx, no gzip": (IDX, b"\0\0\x08\1\0\0\0\2\0\1", "mnist"),
    "idx, torn": (IDX, fake_raw.idx(np.zeros(9, np.uint8))[:-4], "mnist"),
    "idx, of nothing": (IDX, gzip.compress(b""), "mnist"),
    "idx, too short": (IDX, gzip.compress(b"\0\0\x08\1\0\0\0\7abc"), "mnist"),
    "idx, negative": (IDX, gzip.compress(b"\0\0\x08\1\xff\xff\xff\xff"), "mnist"),
    "idx, of floats": (IDX, gzip.compress(b"\0\0\x0d\1\0\0\0\1abcd"), "mnist"),
    "idx, fewer labels": (IDX, fake_raw.idx(np.zeros(3, np.uint8)), "mnist"),
    "idx, labels of 77": (IDX, fake_raw.idx(np.full(10, 77, np.uint8)), "mnist"),
    "strips, no zip": (STRIPS, b"PK nothing", "cifar10"),
    "strips, empty zip": (STRIPS, zipped(), "cifar10"),
    "strips, EPS": strips({"test_000__webp": picture("eps")}),
    "strips, PNG": strips({"test_000__webp": picture("png")}),
    "strips, noise": strips({"test_000__webp": b"RIFF" * 9}),
    "strips, odd size": strips({"test_000__webp": picture("webp", (31, 63))}),
    "strips, few labels": strips({"test_labels__u8": b"\0"}),
    "tar, noise": (raw.CIFAR_BINARY, b"\x1f\x8b noise", "cifar10"),
    "tar, no records": (raw.CIFAR_BINARY, tarred(test_batch__bin=b"12"), "cifar10"),
    "tar, half a record": (raw.CIFAR_BINARY, tarred(test_batch=b"1" * 3072), "cifar10"),
    "tsv, no UTF-8": ("sst2/test.tsv", b"label\tcontent\n1\t\xff\xfe\n", "sst2"),
    "tsv, no tab": ("sst2/test.tsv", b"label\tcontent\n1 fine\n", "sst2"),
    "tsv, label 2": ("sst2/test.tsv", b"label\tcontent\n2\tfine\n", "sst2"),
    "tsv, empty": ("sst2/test.tsv", b"", "sst2"),
    "speeches, no UTF-8": ("shakespeare/input.txt", b"A:\n\xff\xfe", "shakespeare"),
    "speeches, none": ("shakespeare/input.txt", b"nobody speaks", "shakespeare"),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    fake_raw.write(folder)
    return folder


def named(call, *names):
    """Requires one line with these names, and little memory."""
    tracemalloc.start()
    try:
        with refused(*names, error=(ValueError, FileNotFoundError)):
            call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < ROOM, f"{peak:.3g} bytes"


@pytest.mark.parametrize("case", RAW)
def test_a_raw_file_is_refused_by_its_name(whole, tmp_path, case):
    file, content, name = RAW[case]
    folder = shutil.copytree(whole, tmp_path / "raw")
    if file == raw.CIFAR_BINARY:
        (folder / STRIPS).unlink()
    (folder / file).write_bytes(content)
    source = raw.SOURCES[name]
    # Of two files that do not fit together the first is named.
    first = source.files[0] if "fewer" in case or "77" in case else file
    named(lambda: source.examples(folder, "test"), first.split("/")[-1])


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    (tmp_path / "labels.gz").write_bytes(gzip.compress(bytes(2**26)))
    unzip = raw.untrusted_files.unzipped
    named(lambda: unzip(tmp_path / "labels.gz", 2**20), "labels.gz")


NPZ = {
    "empty": b"",
    "noise": b"\x00\xff" * 99,
    "text": b"train_inputs,1,2,3\n",
    "torn zip": WHOLE[:-40],
    "torn array": zipped(train_inputs__npy=npy((9, 9), content=b"123")),
    "head of code": zipped(train_inputs__npy=npy("__import__('os').getcwd()")),
    "no array": zipped(train_inputs__npy=b"not one"),
    "claims 400 TB": zipped(train_inputs__npy=npy((10**7, 10**7), content=b"12")),
}


@pytest.mark.parametrize("case", NPZ)
def test_an_npz_file_is_refused_by_its_name(tmp_path, case):
    (tmp_path / "own.npz").write_bytes(NPZ[case])
    named(lambda: datasets.load("npz/own", tmp_path), "own.npz")


def test_an_npz_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(npz.untrusted_files.free_memory, "of_host", lambda: 3e7)
    content = npy((2**24, 1), content=bytes(2**26))
    (tmp_path / "own.npz").write_bytes(zipped(train_inputs__npy=content))
    named(lambda: datasets.load("npz/own", tmp_path), "own.npz", "fit into memory")


WEIGHTS = {
    "noise.safetensors": b"\x99" * 50,
    "torn.safetensors": b'\x10\0\0\0\0\0\0\0{"a":',
    "huge.safetensors": b"\xff" * 7 + b"\x7f{}",
    "empty.safetensors": b"",
    "noise.npz": b"\x99" * 50,
    "torn.npz": WHOLE[:-40],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_refused_by_their_name(tmp_path, name):
    (tmp_path / name).write_bytes(WEIGHTS[name])
    named(lambda: weights.read(str(tmp_path / name)), name)


LEAF = {
    "torn": "{",
    "a list": "[1, 2]",
    "no users": '{"users": []}',
    "users of numbers": json.dumps({"user_data": {"a": 3}}),
    "no labels": json.dumps({"user_data": {"a": {"x": [[0.0] * 784]}}}),
    "two labels": json.dumps({"user_data": {"a": {"x": [[0.0] * 784], "y": [1, 2]}}}),
    "few pixels": json.dumps({"user_data": {"a": {"x": [[0.0] * 7], "y": [1]}}}),
    "words for pixels": json.dumps(
        {"user_data": {"a": {"x": [["b"] * 784], "y": [1]}}}
    ),
}


@pytest.mark.parametrize("case", LEAF)
def test_json_of_leaf_is_refused_by_its_name(tmp_path, case):
    (tmp_path / "all.json").write_text(LEAF[case])
    named(
        lambda: federated.femnist(federated.Files(*[str(tmp_path)] * 2)), str(tmp_path)
    )


HDF5 = {"noise": b"\x89HDF\r\n\x1a\n" + b"\x99" * 99, "empty": b"", "text": b"examples"}


@pytest.mark.parametrize("case", HDF5)
def test_hdf5_is_refused_by_its_name(tmp_path, case):
    path = tmp_path / "all.h5"
    path.write_bytes(HDF5[case])
    named(lambda: federated.femnist(federated.Files(*[str(path)] * 2)), "all.h5")


OWN = [("config.json", content) for content in (b"{", b"[]", b"\xff\xfe", b"3")]
OWN += [("summary.json", content) for content in (b"{", b"[1]", b"\xff\xfe")]


@pytest.mark.parametrize(("name", "content"), OWN)
def test_files_of_a_run_are_refused_by_their_name(tmp_path, name, content):
    config = config_with(rounds=1, eval_every=1)
    (tmp_path / name).write_bytes(content)
    with refused(match=name):
        run(config, tmp_path, say=lambda line: None)
