"""Broken files: each is refused by its name, without a traceback.

None is unpacked that would fill the memory.
"""

import contextlib
import io
import tracemalloc
import zipfile

import pytest

from fl_sketch.data import datasets, npz
from fl_sketch.workdir import weights
from tests.refusals import refused

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


@contextlib.contextmanager
def named(*names):
    """Requires one line with these names, and little memory."""
    tracemalloc.start()
    try:
        with refused(*names, error=(ValueError, FileNotFoundError)):
            yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < ROOM, f"{peak:.3g} bytes"


WHOLE = zipped(train_inputs__npy=npy((2, 2), content=bytes(16)))
FILES = [
    ("own.npz", b""),
    ("own.npz", b"\x00\xff" * 99),
    ("own.npz", WHOLE[:-40]),
    ("own.npz", zipped(train_inputs__npy=npy((9, 9), content=b"123"))),
    ("own.npz", zipped(train_inputs__npy=npy("__import__('os').getcwd()"))),
    ("own.npz", zipped(train_inputs__npy=b"not one")),
    ("own/train_inputs.npy", b""),
    ("own/train_inputs.npy", npy((10**7, 10**7))),
    ("own/train_inputs.npy", b"\x93NUMPY\x01"),
    ("noise.safetensors", b"\x99" * 50),
    ("torn.safetensors", b'\x10\0\0\0\0\0\0\0{"a":'),
    ("huge.safetensors", b"\xff" * 7 + b"\x7f{}"),
    ("torn.npz", WHOLE[:-40]),
]


@pytest.mark.parametrize(("name", "content"), FILES, ids=range(len(FILES)))
def test_data_and_weights_are_refused_by_their_name(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with named(path.stem):
        if name.startswith("own"):
            datasets.load("npz/own", tmp_path)
        else:
            weights.read(str(path))


def test_an_npz_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(npz.untrusted_files.free_memory, "of_host", lambda: 3e7)
    content = npy((2**24, 1), content=bytes(2**26))
    (tmp_path / "own.npz").write_bytes(zipped(train_inputs__npy=content))
    with named("own.npz", "fit into memory"):
        datasets.load("npz/own", tmp_path)
