"""Files of examples are read, or refused in a line that names them."""

import numpy as np
import pytest
from PIL import Image

from fl_sketch.data import example_files
from tests.refusals import refused

pytestmark = pytest.mark.fast

SHAPE = (4, 6, 1)
IMAGES = np.arange(48, dtype=np.uint8).reshape(2, *SHAPE)


def test_a_picture_is_read_with_the_channels_of_the_model(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(IMAGES[1, ..., 0]).save(path)
    np.testing.assert_array_equal(example_files.arrays(path, SHAPE), IMAGES[1:])
    three = example_files.arrays(path, (4, 6, 3))
    np.testing.assert_array_equal(three, np.repeat(IMAGES[1:], 3, -1))


@pytest.mark.parametrize("count", [1, 2])
def test_arrays_are_one_input_or_many(tmp_path, count):
    one = IMAGES[0] if count == 1 else IMAGES
    np.save(tmp_path / "a.npy", one)
    np.savez(tmp_path / "b.npz", one)
    np.savez(tmp_path / "c.npz", inputs=one, targets=np.zeros(2))
    for name in ("a.npy", "b.npz", "c.npz"):
        found = example_files.arrays(tmp_path / name, SHAPE)
        np.testing.assert_array_equal(found, IMAGES[:count])


def test_lines_are_texts(tmp_path):
    (tmp_path / "a.txt").write_text("to be\n\nor not\n")
    assert example_files.lines(tmp_path / "a.txt") == ["to be", "", "or not"]


def picture(path):
    Image.fromarray(IMAGES[0, ..., 0]).save(path)


@pytest.mark.parametrize(
    ("name", "write", "shape", "words"),
    [
        ("none.png", None, SHAPE, "none.png"),
        ("a.gif", picture, SHAPE, ".png, .npy, .npz"),
        ("a.png", picture, (4, 4, 1), r"\(4, 4, 1\).*uint8.*\(4, 6, 1\)"),
        ("a.png", picture, (24,), r"npy or npz.*\(24,\)"),
        ("a.png", lambda path: path.write_bytes(b"x"), SHAPE, "a.png"),
        ("a.npy", lambda path: path.write_bytes(b"x"), SHAPE, "a.npy"),
        ("a.npy", lambda p: np.save(p, np.array([{}])), SHAPE, "a.npy"),
        ("a.npy", lambda p: np.save(p, IMAGES[:0]), SHAPE, r"\(0, 4, 6, 1\)"),
        ("a.npz", lambda p: np.savez(p, x=IMAGES, y=IMAGES), SHAPE, "inputs, got x, y"),
    ],
    ids=range(9),
)
def test_other_files_are_refused(tmp_path, name, write, shape, words):
    if write:
        write(tmp_path / name)
    with refused(match=words, error=(ValueError, FileNotFoundError)):
        example_files.arrays(tmp_path / name, shape)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n"])
def test_files_without_texts_are_refused(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with refused("a.txt"):
        example_files.lines(tmp_path / "a.txt")
