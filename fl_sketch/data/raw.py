"""Raw files: which a data set needs, whether they are whole, and what they hold.

The files lie in one folder with a list of checksums, `SHA256SUMS`, in the form that
`sha256sum` writes. Nothing here is specific to TFDS: a reader returns the inputs
and the targets of one split, in the order of the file.
"""

import itertools
import math
import os
import pathlib
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fl_sketch.core import files, untrusted_files

SUMS = "SHA256SUMS"
VARIABLE = "FL_SKETCH_DATA"


class Source(NamedTuple):
    """One data set as raw files.

    Attributes:
      files: the paths below the data folder.
      read: `(folder, split) -> (inputs, targets)`: images as uint8 [n, h, w, c] or a
        list of n strings; targets as integers [n].
      splits: the names that `read` knows.
      shape: the shape of one image, or None for text.
      classes: the number of classes of the targets, or None where the file decides.
      instead: other paths with the same data, for where the first are not there.
    """

    files: tuple[str, ...]
    read: Callable[[pathlib.Path, str], tuple[Sequence | np.ndarray, np.ndarray]]
    splits: tuple[str, ...]
    shape: tuple[int, int, int] | None
    classes: int | None
    instead: tuple[str, ...] = ()

    def examples(
        self, path: pathlib.Path, split: str
    ) -> tuple[Sequence | np.ndarray, np.ndarray]:
        """Returns what `read` returns, if inputs and targets are what they should be.

        Args:
          path: path of the folder.
          split: the name of the split.

        Raises:
          ValueError: in one line, naming the first file of the data set.
        """
        where = path / self.found(path)[0]
        with untrusted_files.reading(where):
            inputs, targets = self.read(path, split)
        said = ""
        if len(inputs) != len(targets) or not len(inputs):
            said = f"as many inputs as targets, got {len(inputs)} and {len(targets)}"
        elif self.classes and not 0 <= targets.min() <= targets.max() < self.classes:
            said = f"targets from 0 to {self.classes - 1}, got up to {targets.max()}"
        elif self.shape and np.shape(inputs)[1:] != self.shape:
            said = f"images of shape {self.shape}, got {np.shape(inputs)[1:]}"
        if said:
            msg = f"Expected {where} and what is beside it to have {said} in {split}."
            raise ValueError(msg)
        return inputs, targets

    def found(self, path: pathlib.Path) -> tuple[str, ...]:
        """Returns the files to read in the folder `path`: `files`, or `instead`.

        Those of `instead` are read if all of them are there and not all of `files`.
        """
        there = self.instead and all((path / file).is_file() for file in self.instead)
        missing = not all((path / file).is_file() for file in self.files)
        return self.instead if there and missing else self.files


def folder(data_dir: str | os.PathLike | None) -> pathlib.Path | None:
    """Returns the folder `data_dir`, or without one that of FL_SKETCH_DATA, else None.

    Raises:
      FileNotFoundError: if there is no such folder.
    """
    chosen = data_dir or os.environ.get(VARIABLE)
    if not chosen:
        return None
    path = pathlib.Path(chosen).expanduser()
    if not path.is_dir():
        said = "--data_dir" if data_dir else VARIABLE
        msg = f"Expected {said} to be a folder with raw data, got {said}={path}."
        raise FileNotFoundError(msg)
    return path


def verified(name: str, path: pathlib.Path) -> dict[str, str]:
    """Returns the sha256 of every file of a data set, all equal to those listed.

    Args:
      name: the name of the data set, one of `SOURCES`.
      path: path of the folder with the raw files and their list, `SHA256SUMS`.

    Returns:
      A dictionary of hexadecimal digests by path below the folder.

    Raises:
      FileNotFoundError: for a file, or the list, that is not there.
      ValueError: for a file that is not listed or not what the list says.
    """
    expected = _listed(path)
    return {file: _checked(path / file, expected) for file in SOURCES[name].found(path)}


def _listed(path: pathlib.Path) -> dict[pathlib.Path, str]:
    """Returns the checksums of a folder: lines of `<sha256>  <path>`."""
    file = path / SUMS
    if not file.is_file():
        msg = (
            f"Expected a list of checksums in {file}, got no such file: make it with "
            f"(cd {path} && find . -type f ! -name {SUMS} -exec sha256sum {{}} + > "
            f"{SUMS}), or pass another folder with --data_dir."
        )
        raise FileNotFoundError(msg)
    with untrusted_files.reading(file):
        lines = file.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line]
    if any(len(pair) != 2 for pair in pairs):
        msg = f"Expected lines of a checksum and a path in {file}: make it again."
        raise ValueError(msg)
    return {path / name.lstrip("*"): found for found, name in pairs}


def _checked(file: pathlib.Path, expected: dict[pathlib.Path, str]) -> str:
    if not file.is_file():
        msg = f"Expected the file {file}, got none: pass its folder with --data_dir."
        raise FileNotFoundError(msg)
    found = files.digest(file)
    if found != expected.get(file):
        listed = expected.get(file, "(not listed)")
        msg = (
            f"Expected {file} to have sha256 {listed} as in {SUMS}, got {found}: "
            "mend the file, or pass another folder with --data_dir."
        )
        raise ValueError(msg)
    return found


def _idx(file: pathlib.Path) -> np.ndarray:
    """Returns the bytes of an idx file: two zeros, 8, the rank, the shape, bytes."""
    with untrusted_files.reading(file, "to be an idx file of bytes, as MNIST's are"):
        content = untrusted_files.unzipped(file, untrusted_files.MOST)
        zeros, kind, rank = content[:2], content[2], content[3]
        shape = np.frombuffer(content, ">i4", rank, offset=4).tolist()
        size = math.prod(shape) if min(shape) >= 0 else -1
        if zeros != b"\0\0" or kind != 8 or len(content) != 4 + 4 * rank + size:
            msg = f"{len(content)} bytes for a shape of {shape}"
            raise ValueError(msg)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _read_idx(path: pathlib.Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    stem = {"train": "train", "test": "t10k"}[split]
    images = _idx(path / f"{stem}-images-idx3-ubyte.gz")
    return images[..., None], _idx(path / f"{stem}-labels-idx1-ubyte.gz")


def _idx_source(name: str) -> Source:
    kinds = ("images-idx3", "labels-idx1")
    files = itertools.product(("train", "t10k"), kinds)
    return Source(
        tuple(f"{name}/{part}-{kind}-ubyte.gz" for part, kind in files),
        lambda path, split: _read_idx(path / name, split),
        ("train", "test"),
        shape=(28, 28, 1),
        classes=10,
    )


CIFAR, CIFAR_BINARY = "cifar10_webp.zip", "cifar-10-binary.tar.gz"


def _read_cifar10(path: pathlib.Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads strips of images, or where there are none the archive of its authors."""
    if not (path / CIFAR).is_file():
        return _read_cifar10_binary(path, split)
    return _read_cifar10_strips(path, split)


def _read_cifar10_binary(
    path: pathlib.Path, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Reads records of a label and 3 planes of 32 x 32, of data_batch_1.bin and on."""
    part = {"train": "data_batch_", "test": "test_batch"}[split]
    with untrusted_files.reading(path / CIFAR_BINARY):
        records = np.frombuffer(
            untrusted_files.members(path / CIFAR_BINARY, part), np.uint8
        )
    if not records.size or records.size % (1 + 3 * 32 * 32):
        msg = f"Expected {path / CIFAR_BINARY} to have records of 3073 bytes in {part}."
        raise ValueError(msg)
    records = records.reshape(-1, 1 + 3 * 32 * 32)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return planes.transpose(0, 2, 3, 1), records[:, 0]


def _read_cifar10_strips(
    path: pathlib.Path, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Reads lossless WebP strips: images below one another, 32 pixels wide."""
    file = path / CIFAR
    with untrusted_files.reading(file), zipfile.ZipFile(file) as archive:
        strips = [
            untrusted_files.picture(
                untrusted_files.member(archive, name), "RGB", ("WEBP",)
            )
            for name in sorted(archive.namelist())
            if name.startswith(f"{split}_") and name.endswith(".webp")
        ]
        targets = np.frombuffer(
            untrusted_files.member(archive, f"{split}_labels.u8"), np.uint8
        )
        return _tiles(strips, (32, 32, 3)), targets


def _tiles(strips: list[np.ndarray], shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the images of strips, which may be a column, a row or a table of them."""
    height, width, channels = shape
    return np.concatenate(
        [
            strip.reshape(
                len(strip) // height, height, strip.shape[1] // width, width, channels
            )
            .swapaxes(1, 2)
            .reshape(-1, *shape)
            for strip in strips
        ]
    )


def _read_sst2(path: pathlib.Path, split: str) -> tuple[list[str], np.ndarray]:
    """Reads lines of `label<TAB>sentence` below a header, or as GLUE the other way."""
    file = path / "sst2" / f"{split}.tsv"
    with untrusted_files.reading(file):
        head, *lines = file.read_text(encoding="utf-8").split("\n")
    order = -1 if head.split("\t") == ["sentence", "label"] else 1
    pairs = [line.split("\t")[::order] for line in lines if line]
    for number, pair in enumerate(pairs, 2):
        if len(pair) != 2 or pair[0] not in ("0", "1"):
            msg = f"Expected 0 or 1, a tab and a sentence in line {number} of {file}."
            raise ValueError(msg)
    if not pairs:
        msg = f"Expected labels and sentences in {file}, got none."
        raise ValueError(msg)
    labels, sentences = zip(*pairs, strict=True)
    return list(sentences), np.array(labels, np.int32)


def _read_shakespeare(path: pathlib.Path, split: str) -> tuple[list[str], np.ndarray]:
    """Reads speeches; the target is the speaker, counted in alphabetical order.

    Every fifth part of a speaker's speeches, the latest, is for testing, so that no
    text is tested that stands before the text trained on (as in LEAF).
    """
    file = path / "shakespeare" / "input.txt"
    with untrusted_files.reading(file):
        blocks = file.read_text(encoding="utf-8").strip("\n").split("\n\n")
    pairs = [block.partition(":\n") for block in blocks]
    pairs = [(speaker.strip(), speech) for speaker, _, speech in pairs if speech]
    names, ids = np.unique([speaker for speaker, _ in pairs], return_inverse=True)
    held_out = np.bincount(ids) // 5
    left = np.bincount(ids)
    tested = np.zeros(len(ids), bool)
    for place, speaker in enumerate(ids):
        tested[place] = left[speaker] <= held_out[speaker]
        left[speaker] -= 1
    chosen = np.flatnonzero(tested == (split == "test"))
    return [pairs[place][1] for place in chosen], ids[chosen].astype(np.int32)


SOURCES = {
    "mnist": _idx_source("mnist"),
    "fashion_mnist": _idx_source("fashion_mnist"),
    "cifar10": Source(
        (CIFAR,),
        _read_cifar10,
        ("train", "test"),
        shape=(32, 32, 3),
        classes=10,
        instead=(CIFAR_BINARY,),
    ),
    "sst2": Source(
        ("sst2/train.tsv", "sst2/dev.tsv", "sst2/test.tsv"),
        _read_sst2,
        ("train", "dev", "test"),
        shape=None,
        classes=2,
    ),
    "shakespeare": Source(
        ("shakespeare/input.txt",),
        _read_shakespeare,
        ("train", "test"),
        shape=None,
        classes=None,
    ),
}
