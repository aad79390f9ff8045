"""Prepared data: made from raw files once, then read as arrays in milliseconds.

Below `tfds_dir` there are the data sets of TFDS, in its own layout. In its folder
`arrays/` is what their train and test splits decode to, as numpy files to be mapped
into memory: decoding 60,000 PNG images takes seconds, mapping them nothing. Both appear
in one step, by renaming a finished folder, so that a process which is killed leaves
nothing that looks finished. One process at a time writes a data set, so that several on
one machine may start together.

The folder of arrays is named by a digest of the TFDS description (version, checksums
of the raw files) and of its files' sizes and times: arrays cannot outlive their data.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import read_only_builder

from fl_sketch.core import files, plugins, untrusted_files, validate
from fl_sketch.data import decoding, raw
from fl_sketch.data.builders import FlSketch
from fl_sketch.data.examples import Examples, Splits

SUMS = "sums.json"  # SHA-256 of the files of arrays
OWN = "tensorflow_datasets.core.features."  # modules of TFDS's own features
TEST_SPLITS = ("test", "validation")  # the first that a data set has


def cache_folder(tfds_dir: str | os.PathLike | None) -> pathlib.Path:
    """Returns the folder of prepared data: `tfds_dir`, or if none is given the cache's.

    That is fl_sketch/tfds in XDG_CACHE_HOME, or in ~/.cache. It need not exist.
    """
    if tfds_dir:
        return pathlib.Path(tfds_dir).expanduser().absolute()
    return files.user_cache() / "tfds"


def prepare(
    name: str,
    data_dir: str | os.PathLike | None = None,
    tfds_dir: str | os.PathLike | None = None,
    *,
    overwrite: bool = False,
) -> tfds.core.DatasetBuilder:
    """Returns the TFDS builder of one of `raw.SOURCES`, prepared now if need be.

    Args:
      name: the name of the data set.
      data_dir: path of the raw files; None: that of FL_SKETCH_DATA. Where there is one,
        its files are verified.
      tfds_dir: path of prepared data; None: see `cache_folder`.
      overwrite: whether to prepare again what is there already.

    Raises:
      FileNotFoundError: without raw files, if it was not prepared before.
      ValueError: for corrupt raw files, and for data that were prepared from other
        raw files, unless they are to be overwritten.
    """
    root, folder = cache_folder(tfds_dir), raw.folder(data_dir)
    sums = raw.verified(name, folder) if folder else None
    builder = _builder(root, name)
    if overwrite or not _is_prepared(builder):
        if not folder:
            msg = (
                f"Expected a folder with the raw files of {name}, not yet prepared in "
                f"{root}: pass --data_dir or set {raw.VARIABLE}."
            )
            raise FileNotFoundError(msg)
        with _alone(root, name):
            builder = _builder(root, name)  # another process may have been faster
            if overwrite or not _is_prepared(builder):
                builder = _written(root, name, folder)
    if sums and (builder.info.metadata or {}).get("sha256") != sums:
        msg = (
            f"Expected {name} in {builder.data_path} to be made from the raw files in "
            f"{folder}, which have other checksums: prepare it again with python -m "
            f"launch.prepare_data --dataset={name} --overwrite, or pass --tfds_dir."
        )
        raise ValueError(msg)
    return builder


def read(
    name: str,
    data_dir: str | os.PathLike | None = None,
    tfds_dir: str | os.PathLike | None = None,
) -> Splits:
    """Returns a data set, its images mapped into memory.

    The arguments `name`, `data_dir` and `tfds_dir`, and what it raises, are those of
    `datasets.load`, for data sets that come by way of TFDS.
    """
    root = cache_folder(tfds_dir)
    with untrusted_files.reading(
        f"{name} in {root}", "to be prepared as TFDS leaves it"
    ):
        if name in raw.SOURCES:
            builder = prepare(name, data_dir, tfds_dir)
        else:
            builder = _already_prepared(name, root)
        splits = _train_and_test(builder)
        folder = arrays_folder(builder, root)
        if not (folder / SUMS).is_file():
            with _alone(root, name):
                if not (folder / SUMS).is_file():
                    _write_arrays(folder, builder, splits)
        said = decoding.classes(builder)
    _require_unchanged(folder)
    train, test = (_open_arrays(folder, split) for split in splits)
    shown = 1 + max(int(part.targets.max()) for part in (train, test))
    learnt = None if said else ("classes", 0)
    return Splits(name, train, test, said or shown, learnt=learnt)


def arrays_folder(
    builder: tfds.core.DatasetBuilder, root: pathlib.Path
) -> pathlib.Path:
    """Returns where the arrays of exactly these prepared data belong.

    Args:
      builder: the TFDS builder of the data, which are read for a digest.
      root: path of the folder of all prepared data.
    """
    digest = hashlib.sha256()
    for file in sorted(pathlib.Path(builder.data_dir).iterdir()):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}".encode())
        if file.suffix == ".json":
            digest.update(file.read_bytes())
    return root / "arrays" / builder.info.full_name / digest.hexdigest()[:16]


def _builder(root: pathlib.Path, name: str) -> FlSketch:
    return FlSketch(data_dir=root, config=name, file_format="array_record")


def _is_prepared(builder: FlSketch) -> bool:
    """As `builder.is_prepared()`, which logs a warning where it answers no."""
    return (builder.data_path / "dataset_info.json").is_file()


def _written(root: pathlib.Path, name: str, folder: pathlib.Path) -> FlSketch:
    """Prepares a data set; its raw files are read in place, nothing is extracted."""
    place = _builder(root, name).data_path
    for old in (place, *place.parent.glob("incomplete.*")):
        shutil.rmtree(old, ignore_errors=True)
    builder = _builder(root, name)  # one that has not read what is now removed
    tfds.display_progress_bar(sys.stderr.isatty())
    config = tfds.download.DownloadConfig(manual_dir=folder)
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.redirect_stdout(io.StringIO()),  # "Downloading Unknown size"
    ):
        builder.download_and_prepare(download_dir=scratch, download_config=config)
    return builder


def _already_prepared(name: str, root: pathlib.Path) -> tfds.core.DatasetBuilder:
    """Returns the builder of a TFDS data set from its files alone, without network.

    Nothing but TFDS's own code is imported for it.
    """
    for file in (root / re.split(r"[/:]", name)[0]).rglob("features.json"):
        with untrusted_files.reading(file):
            untrusted_files.require_only(json.loads(file.read_text()), OWN, file)
    try:
        return read_only_builder.builder_from_files(name, data_dir=root)
    except (tfds.core.DatasetNotFoundError, ValueError):  # no data, or no name
        known = ("digits", *raw.SOURCES, "npz/FILE", "synthetic/N", plugins.SHAPE)
        msg = (
            f"Expected a data set of {', '.join(known)}, or a TFDS data set that is "
            f"prepared in {root}, got {name!r}.{validate.nearest(name, known)}"
        )
        raise FileNotFoundError(msg) from None


def _train_and_test(builder: tfds.core.DatasetBuilder) -> tuple[str, str]:
    have = list(builder.info.splits)
    tests = [split for split in TEST_SPLITS if split in have]
    if "train" not in have or not tests:
        msg = (
            f"Expected {builder.info.full_name} to have a split train and one of "
            f"{', '.join(TEST_SPLITS)}, got {', '.join(have)}."
        )
        raise ValueError(msg)
    return "train", tests[0]


@contextlib.contextmanager
def _alone(root: pathlib.Path, name: str) -> Iterator[None]:
    """Lets one process at a time in; the system frees the lock when it is killed."""
    locks = root / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    path = locks / name.replace("/", "-")
    with open(path, "a", opener=files.unlinked) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_arrays(
    folder: pathlib.Path, builder: tfds.core.DatasetBuilder, splits: tuple[str, str]
) -> None:
    """Writes arrays to a scratch folder and renames it; older ones are removed."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        finished = pathlib.Path(scratch) / "finished"
        finished.mkdir()
        for split in splits:
            inputs, targets = decoding.decoded(builder, split)
            if inputs.dtype == object:
                inputs, ends = decoding.joined(inputs)
                _save(finished / f"{split}_ends.npy", ends)
            _save(finished / f"{split}_inputs.npy", inputs)
            _save(finished / f"{split}_targets.npy", targets)
        sums = {file.name: files.digest(file) for file in sorted(finished.iterdir())}
        files.write_text(finished / SUMS, json.dumps(sums, indent=2) + "\n")
        finished.rename(folder)
    files.flush(folder.parent)


def _require_unchanged(folder: pathlib.Path) -> None:
    """Raises unless all arrays are those that were written."""
    with untrusted_files.reading(folder / SUMS):
        sums = json.loads((folder / SUMS).read_text())
    for name, own in sums.items():
        if files.digest(folder / name) != own:
            msg = (
                f"Expected {folder / name} as it was prepared, got other bytes: remove "
                "its folder, it is a copy."
            )
            raise ValueError(msg)


def _save(file: pathlib.Path, array: np.ndarray) -> None:
    with open(file, "wb") as stream:
        np.save(stream, array, allow_pickle=False)
    files.flush(file)  # before the renaming, also if the power fails


def _open_arrays(folder: pathlib.Path, split: str) -> Examples:
    def mapped(part):
        file = folder / f"{split}_{part}.npy"
        try:
            return np.asarray(np.load(file, mmap_mode="r"))
        except (ValueError, EOFError):
            msg = (
                f"Expected {file} to be a numpy file: remove its folder, it is a copy."
            )
            raise ValueError(msg) from None

    inputs, ends = mapped("inputs"), folder / f"{split}_ends.npy"
    if ends.exists():
        inputs = decoding.parted(inputs, mapped("ends"))
    return Examples(inputs, mapped("targets"))
