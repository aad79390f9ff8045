"""Broken files: each is refused by its name, without a traceback.

None is unpacked that would fill the memory.
"""

import io
import tracemalloc
import zipfile

import pytest

from fl_sketch.data import datasets, npz
from fl_sketch.run import run
from fl_sketch.workdir import weights
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


WHOLE = zipped(train_inputs__npy=npy((2, 2), content=bytes(16)))
NPZ = {
    "empty": b"",
    "noise": b"\x00\xff" * 99,
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


@pytest.mark.parametrize("content", [b"", npy((10**7, 10**7)), b"\x93NUMPY\x01"])
def test_an_array_of_a_folder_is_refused_by_its_name(tmp_path, content):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train_inputs.npy").write_bytes(content)
    named(lambda: datasets.load("npz/own", tmp_path), "train_inputs in", "own")


WEIGHTS = {
    "noise.safetensors": b"\x99" * 50,
    "torn.safetensors": b'\x10\0\0\0\0\0\0\0{"a":',
    "huge.safetensors": b"\xff" * 7 + b"\x7f{}",
    "torn.npz": WHOLE[:-40],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_refused_by_their_name(tmp_path, name):
    (tmp_path / name).write_bytes(WEIGHTS[name])
    named(lambda: weights.read(str(tmp_path / name)), name)


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_files_of_a_run_are_refused_by_their_name(tmp_path, name):
    config = config_with(rounds=1, eval_every=1)
    (tmp_path / name).write_bytes(b"[1]")
    with refused(match=name):
        run(config, tmp_path, say=lambda line: None)
