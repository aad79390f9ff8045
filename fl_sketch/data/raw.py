"""The public files of five data sets, read as their authors distribute them.

A file is read anew at each start, in a second or two, and is not copied anywhere. Where
to download the files, and the folders that they belong to, is in docs/data.md.
"""

import functools
import gzip
import math
import os
import pathlib
import re
import tarfile
import zlib
from collections.abc import Callable

import numpy as np

from fl_sketch.core import untrusted_files
from fl_sketch.data.examples import Examples, Splits, aligned_empty, from_parts

VARIABLE = "FL_SKETCH_DATA"
MOST = 2**30  # bytes of one unpacked file
CIFAR = "cifar-10-binary.tar.gz"
RECORD = 1 + 3 * 32 * 32  # bytes: a label and 3 planes of 32 x 32
CLOTHES = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle_boot"
THINGS = "airplane automobile bird cat deer dog frog horse ship truck"


def folder(data_dir: str | os.PathLike | None) -> pathlib.Path | None:
    """Returns the folder `data_dir`, or that of FL_SKETCH_DATA; None: neither."""
    chosen = data_dir or os.environ.get(VARIABLE)
    if not chosen:
        return None
    path = pathlib.Path(chosen).expanduser()
    if not path.is_dir():
        name = "--data_dir" if data_dir else VARIABLE
        msg = f"Expected {name} to be a folder with data, got {name}={path}."
        raise FileNotFoundError(msg)
    return path


def _existing(file: pathlib.Path) -> pathlib.Path:
    """Returns the path of a file, or says which one is missing in which folder."""
    if not file.is_file():
        msg = f"{file.parent} has no {file.name}: docs/data.md says where to get it."
        raise FileNotFoundError(msg)
    return file


def _unzipped(file: pathlib.Path) -> bytes:
    """Returns the content of a gzip file, at most `MOST` bytes of it."""
    packed, stream = _existing(file).read_bytes(), zlib.decompressobj(wbits=31)
    with untrusted_files.reading(file, "to be a whole gzip file"):
        content = stream.decompress(packed, MOST)
        if not stream.eof:
            msg = f"{len(content)} bytes, and then no end"
            raise ValueError(msg)
        return content


def _idx(file: pathlib.Path) -> np.ndarray:
    """Returns the bytes of an idx file: two zeros, 8, the rank, the shape, bytes."""
    content = _unzipped(file)
    with untrusted_files.reading(file, "to be an idx file of bytes, as MNIST's are"):
        kind, rank = content[:3], content[3]
        shape = np.frombuffer(content, ">i4", rank, offset=4).tolist()
        if kind != b"\0\0\x08" or len(content) != 4 + 4 * rank + math.prod(shape):
            msg = f"{len(content)} bytes for a shape of {shape}"
            raise ValueError(msg)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _examples(
    where: pathlib.Path, inputs: np.ndarray, targets: np.ndarray, classes: int
) -> Examples:
    """Returns inputs and targets, which must belong together."""
    if len(inputs) != len(targets) or not len(inputs) or targets.max() >= classes:
        msg = (
            f"Expected {where} to have as many targets as inputs, below {classes}, got "
            f"{len(targets)} for {len(inputs)}, up to {max(targets, default='none')}."
        )
        raise ValueError(msg)
    return Examples(inputs, targets.astype(np.int32))


def _idx_set(path: pathlib.Path, name: str, classes: str) -> Splits:
    parts = {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        first = path / name / f"{stem}-images-idx3-ubyte.gz"
        images = _idx(first)
        labels = _idx(path / name / f"{stem}-labels-idx1-ubyte.gz")
        if images.shape[1:] != (28, 28) or labels.ndim != 1:
            msg = f"Expected {first} to have images of 28 x 28 pixels, and labels, got "
            raise ValueError(msg + f"shapes {images.shape} and {labels.shape}.")
        parts[part] = _examples(first, images[..., None], labels, 10)
    return from_parts(name, parts, 10, class_names=tuple(classes.split()))


def _cifar10(path: pathlib.Path) -> Splits:
    """Reads the binary archive: the batches of training in the order of their names."""
    file = _existing(path / CIFAR)
    batches = {}
    with (
        untrusted_files.reading(file, "to be the archive of CIFAR-10 as binary files"),
        gzip.open(file) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=2**20) as archive,
    ):
        for entry in archive:
            name = re.search(r"(data|test)_batch(_\d)?\.bin$", entry.name)
            if name is None:
                continue
            if not entry.isfile() or entry.size % RECORD or entry.size > MOST:
                msg = f"{entry.size} bytes in {name[0]}, no records of {RECORD}"
                raise ValueError(msg)
            content = archive.extractfile(entry).read()  # pyright: ignore[reportOptionalMemberAccess]
            batches[name[0]] = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    parts = {}
    for part, start in (("train", "data"), ("test", "test")):
        records = [batches[name] for name in sorted(batches) if name.startswith(start)]
        images = aligned_empty((sum(map(len, records)), 32, 32, 3), np.uint8)
        done = 0
        for batch in records:
            planes = batch[:, 1:].reshape(-1, 3, 32, 32)
            for channel in range(3):  # three times as fast as all of them at once
                images[done : done + len(batch), ..., channel] = planes[:, channel]
            done += len(batch)
        labels = np.concatenate([np.empty(0, np.uint8), *(b[:, 0] for b in records)])
        parts[part] = _examples(file, images, labels, 10)
    return from_parts("cifar10", parts, 10, class_names=tuple(THINGS.split()))


def _lines(file: pathlib.Path, end: str) -> list[str]:
    content = _existing(file).read_bytes()
    with untrusted_files.reading(file, "to be a text in UTF-8"):
        return content.decode().strip("\n").split(end)


def _sst2(path: pathlib.Path) -> Splits:
    """Reads lines of `label<TAB>sentence` below a header, or as GLUE the other way."""
    parts = {}
    for part in ("train", "test"):
        file = path / "sst2" / f"{part}.tsv"
        head, *lines = _lines(file, "\n")
        order = -1 if head.split("\t") == ["sentence", "label"] else 1
        pairs = [line.split("\t")[::order] for line in lines]
        for number, pair in enumerate(pairs, 2):
            if len(pair) != 2 or pair[0] not in ("0", "1"):
                msg = f"Expected 0 or 1, a tab and a sentence in line {number} of "
                raise ValueError(msg + f"{file}.")
        sentences = np.array([sentence for _, sentence in pairs], object)
        labels = np.array([label == "1" for label, _ in pairs], np.int32)
        parts[part] = _examples(file, sentences, labels, 2)
    return from_parts("sst2", parts, 2, class_names=("negative", "positive"))


def _shakespeare(path: pathlib.Path) -> Splits:
    """Reads speeches; the target is the speaker, counted in alphabetical order.

    The last fifth of a speaker's speeches is for testing, so no tested text precedes
    the training text (as in LEAF).
    """
    file = path / "shakespeare" / "input.txt"
    pairs = [block.partition(":\n") for block in _lines(file, "\n\n")]
    pairs = [(speaker.strip(), speech) for speaker, _, speech in pairs if speech]
    names, ids, counts = np.unique(
        [speaker for speaker, _ in pairs], return_inverse=True, return_counts=True
    )
    order = np.argsort(ids, kind="stable")
    rank = np.empty(len(ids), np.int64)  # of each speech among those of its speaker
    rank[order] = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    tested = rank >= counts[ids] - counts[ids] // 5
    speeches = np.array([speech for _, speech in pairs], object)
    parts = {
        part: _examples(file, speeches[chosen], ids[chosen], len(names))
        for part, chosen in (("train", ~tested), ("test", tested))
    }
    return from_parts("shakespeare", parts, class_names=tuple(names.tolist()))


READERS: dict[str, Callable[[pathlib.Path], Splits]] = {
    "mnist": functools.partial(_idx_set, name="mnist", classes=""),
    "fashion_mnist": functools.partial(_idx_set, name="fashion_mnist", classes=CLOTHES),
    "cifar10": _cifar10,
    "sst2": _sst2,
    "shakespeare": _shakespeare,
}
