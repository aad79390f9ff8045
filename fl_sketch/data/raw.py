"""Raw files: which a data set needs, whether they are whole, and what they hold.

The files are in one folder with a list of checksums, `SHA256SUMS`, in the form that
`sha256sum` writes. A reader returns the inputs and the targets of one split, in the
order of the file.
"""

import math
import os
import pathlib
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fl_sketch.core import files, untrusted_files
from fl_sketch.data.examples import Examples

SUMS = "SHA256SUMS"
VARIABLE = "FL_SKETCH_DATA"


class Source(NamedTuple):
    """One data set as raw files.

    Attributes:
      files: the paths below the data folder.
      read: `(folder, split) -> (inputs, targets)`, for "train" and "test": images as
        uint8 [n, h, w, c] or a list of n strings; targets as integers [n].
      shape: the shape of one image; None: texts.
      classes: the number of classes of the targets; None: as many as the file shows.
      instead: other paths with the same data, read if `files` are not there.
      named: `(folder) -> names` of the classes; by default they have none.
    """

    files: tuple[str, ...]
    read: Callable
    shape: tuple[int, int, int] | None
    classes: int | None
    instead: tuple[str, ...] = ()
    named: Callable[[pathlib.Path], Sequence[str]] = lambda folder: ()

    def examples(self, path: pathlib.Path, split: str) -> Examples:
        """Returns the examples of a split in the folder `path`: targets are int32.

        Raises:
          ValueError: in one line that names the first file, if inputs and targets do
            not fit together.
        """
        where = path / self.present(path)[0]
        with untrusted_files.reading(where):
            inputs, targets = self.read(path, split)
        wrong = ""
        if len(inputs) != len(targets) or not len(inputs):
            wrong = f"as many inputs as targets, got {len(inputs)} and {len(targets)}"
        elif self.classes and not 0 <= targets.min() <= targets.max() < self.classes:
            wrong = f"targets from 0 to {self.classes - 1}, got up to {targets.max()}"
        elif self.shape and np.shape(inputs)[1:] != self.shape:
            wrong = f"images of shape {self.shape}, got {np.shape(inputs)[1:]}"
        if wrong:
            msg = f"Expected {where} and what belongs to it to have {wrong} in {split}."
            raise ValueError(msg)
        kind = np.uint8 if self.shape else object
        return Examples(np.asarray(inputs, kind), np.asarray(targets, np.int32))

    def present(self, path: pathlib.Path) -> tuple[str, ...]:
        """Returns the files to read in the folder `path`: `files` or `instead`.

        `instead` is read if all of it is there and not all of `files`.
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
        name = "--data_dir" if data_dir else VARIABLE
        msg = f"Expected {name} to be a folder with raw data, got {name}={path}."
        raise FileNotFoundError(msg)
    return path


def verified(name: str, path: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 of every file of a data set, by its path below the folder.

    Args:
      name: the name of the data set, one of `SOURCES`.
      path: the folder with the raw files and their list, `SHA256SUMS`.

    Raises:
      FileNotFoundError: for a file, or the list, that is not there.
      ValueError: for a file that is not listed or not what the list says.
    """
    listed, digests = _listed(path), {}
    for place in SOURCES[name].present(path):
        file = path / place
        if not file.is_file():
            msg = (
                f"Expected the file {file}, got none: pass its folder with --data_dir."
            )
            raise FileNotFoundError(msg)
        digest = digests[place] = files.digest(file)
        if digest != listed.get(file):
            msg = (
                f"Expected {file} to have sha256 {listed.get(file, '(not listed)')} as "
                f"in {SUMS}, got {digest}: mend the file, or pass another folder with "
                "--data_dir."
            )
            raise ValueError(msg)
    return digests


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
    return {path / name.lstrip("*"): digest for digest, name in pairs}


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


def _idx_source(name: str, classes: str = "") -> Source:
    stems = {"train": "train", "test": "t10k"}

    def names(stem: str) -> list[str]:
        kinds = ("images-idx3", "labels-idx1")
        return [f"{name}/{stem}-{kind}-ubyte.gz" for kind in kinds]

    def read(path: pathlib.Path, split: str):
        images, labels = (_idx(path / file) for file in names(stems[split]))
        return images[..., None], labels

    every = (*names("train"), *names("t10k"))
    shape, named = (28, 28, 1), _always(classes)
    return Source(every, read, shape, classes=10, named=named)


def _always(classes: str) -> Callable[[pathlib.Path], Sequence[str]]:
    """Returns a function that returns the names in a text, whatever the folder."""
    return lambda folder: classes.split()


CIFAR, CIFAR_BINARY = "cifar10_webp.zip", "cifar-10-binary.tar.gz"
RECORD = 1 + 3 * 32 * 32  # bytes: a label and 3 planes of 32 x 32


def _read_cifar10(path: pathlib.Path, split: str):
    """Reads strips of images, or where there are none the archive of its authors."""
    if (path / CIFAR).is_file():
        return _read_cifar10_strips(path / CIFAR, split)
    file, part = path / CIFAR_BINARY, {"train": "data_batch_", "test": "test_batch"}
    with untrusted_files.reading(file):
        content = untrusted_files.members(file, part[split])
    if not content or len(content) % RECORD:
        msg = f"Expected {file} to have records of {RECORD} bytes in {part[split]}."
        raise ValueError(msg)
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return planes.transpose(0, 2, 3, 1), records[:, 0]


def _read_cifar10_strips(file: pathlib.Path, split: str):
    """Reads lossless WebP strips of images."""
    with untrusted_files.reading(file), zipfile.ZipFile(file) as archive:
        names = sorted(archive.namelist())
        strips = [
            untrusted_files.picture(
                untrusted_files.member(archive, name), "RGB", ("WEBP",)
            )
            for name in names
            if name.startswith(f"{split}_") and name.endswith(".webp")
        ]
        labels = untrusted_files.member(archive, f"{split}_labels.u8")
        return _tiles(strips, (32, 32, 3)), np.frombuffer(labels, np.uint8)


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

    The last fifth of a speaker's speeches is for testing, so no tested text precedes
    the training text (as in LEAF).
    """
    pairs = _speeches(path)
    names = [speaker for speaker, _ in pairs]
    ids, counts = np.unique(names, return_inverse=True, return_counts=True)[1:]
    order = np.argsort(ids, kind="stable")
    rank = np.empty(len(ids), np.int64)  # of each speech among those of its speaker
    rank[order] = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    tested = rank >= counts[ids] - counts[ids] // 5
    chosen = np.flatnonzero(tested == (split == "test"))
    return [pairs[place][1] for place in chosen], ids[chosen].astype(np.int32)


def _speeches(path: pathlib.Path) -> list[tuple[str, str]]:
    """Returns pairs of a speaker and a speech, in the order of the play."""
    file = path / "shakespeare" / "input.txt"
    with untrusted_files.reading(file):
        blocks = file.read_text(encoding="utf-8").strip("\n").split("\n\n")
    pairs = [block.partition(":\n") for block in blocks]
    return [(speaker.strip(), speech) for speaker, _, speech in pairs if speech]


def _speakers(path: pathlib.Path) -> list[str]:
    return sorted({speaker for speaker, _ in _speeches(path)})


CLOTHES = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle_boot"
THINGS = "airplane automobile bird cat deer dog frog horse ship truck"
SOURCES = {
    "mnist": _idx_source("mnist"),
    "fashion_mnist": _idx_source("fashion_mnist", CLOTHES),
    "cifar10": Source(
        (CIFAR,),
        _read_cifar10,
        (32, 32, 3),
        classes=10,
        instead=(CIFAR_BINARY,),
        named=_always(THINGS),
    ),
    "sst2": Source(
        ("sst2/train.tsv", "sst2/test.tsv"),
        _read_sst2,
        None,
        classes=2,
        named=_always("negative positive"),
    ),
    "shakespeare": Source(
        ("shakespeare/input.txt",),
        _read_shakespeare,
        None,
        classes=None,
        named=_speakers,
    ),
}
