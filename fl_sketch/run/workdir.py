"""What a run leaves in its folder, and how a later run finds its way back.

config.json, metrics.csv (a row for each evaluation), checkpoints/, and at the end
summary.json and curves.png. A reader never sees half of a file. A sweep leaves the
same under other names.
"""

import contextlib
import csv
import fcntl
import hashlib
import importlib.metadata
import json
import os
import pathlib
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch import plugins
from fl_sketch.config import choices
from fl_sketch.files import writable_folder, write_text
from fl_sketch.models import arrays
from fl_sketch.report import curves
from fl_sketch.run import weights

Row = dict[str, Any]
FORMAT = 2  # of a folder: what another one began, this version does not go on with
PLUGINS = "plugins"  # of files that a config names, their digests
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
TIMES = ("rounds_per_second", "seconds")  # what two equal runs may differ in


class Files(NamedTuple):
    """What the files of a folder are called, and how its picture is drawn.

    Attributes:
      rows: the csv file of evaluations.
      summary: the json file that stands for a finished run.
      picture: the png file.
      draw: `(rows, path)`, writes the picture.
    """

    rows: str
    summary: str
    picture: str
    draw: Callable[[Sequence[Row], os.PathLike], None]


RUN = Files("metrics.csv", "summary.json", "curves.png", curves.draw)


class Workdir:
    """The `folder` of a run and its `rows`, locked until closed or the process ends."""

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        files: Files = RUN,
        *,
        longer: bool = False,
    ):
        """Opens a folder for a run, or to go on with one.

        Args:
          path: the folder.
          config: the config of the run.
          files: the names of its files, and what draws its picture.
          longer: whether the run in the folder becomes one of more rounds.

        Raises:
          ValueError: if it cannot be written, is in use, or holds the run of another
            config.
        """
        self.folder = writable_folder(path)
        self.rows: list[Row] = []
        self._files = files
        try:
            with contextlib.ExitStack() as stack:
                lock = stack.enter_context(open(self.folder / ".lock", "w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._require_same(json.loads(json.dumps(config)), longer)
                self._held = stack.pop_all()
        except BlockingIOError:
            msg = f"Expected a workdir of no other process, got workdir={path} in use."
            raise ValueError(msg) from None
        except OSError as error:
            msg = f"Expected a workdir that can be written, got workdir={path} "
            raise ValueError(msg + f"({error.strerror}).") from None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._held.close()

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    def keep_rows_up_to(self, number: int) -> None:
        """Forgets the rows after round `number`: they will be made again, the same."""
        self.keep_rows(lambda rows: sum(int(row["round"]) <= number for row in rows))

    def keep_rows(self, how_many: Callable[[list[Row]], int]) -> None:
        """Forgets all rows but the first ones, as many as `how_many` says of them."""
        path = self.folder / self._files.rows
        if not path.exists():
            return
        # A line without its end is torn, and "12" may have been meant to be "120".
        lines = [x for x in path.read_text().splitlines(True) if x.endswith("\n")]
        rows = list(csv.DictReader(lines))
        self.rows = rows[: how_many(rows)]
        if self.rows:
            write_text(path, "".join(lines[: len(self.rows) + 1]))
        else:
            path.unlink()

    def add(self, *rows: Row) -> None:
        """Adds `rows` to the file of evaluations."""
        with open(self.folder / self._files.rows, "a", newline="") as file:
            columns = list((self.rows or rows)[0])  # as they stand in the head
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            if not self.rows:
                writer.writeheader()
            writer.writerows(rows)
            file.flush()
            os.fsync(file.fileno())
        self.rows.extend(rows)

    def finish(self, summary: Mapping[str, Any]) -> Row:
        """Writes the picture and the `summary`; returns the latter."""
        self._files.draw(self.rows, self.folder / self._files.picture)
        whole = {
            **summary,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }
        write_text(
            self.folder / self._files.summary, json.dumps(whole, indent=2) + "\n"
        )
        return whole

    def summary(self) -> Row | None:
        """Returns the summary, if the run has ended."""
        path = self.folder / self._files.summary
        return json.loads(path.read_text()) if path.exists() else None

    def _require_same(self, config: Mapping[str, Any], longer: bool) -> None:
        path, ours = self.folder / "config.json", choices.flat(config)
        files = plugins.digests(ours.values()) | _digests(ours)
        named = {"format": FORMAT, **config, **({PLUGINS: files} if files else {})}
        if not path.exists():
            write_text(path, json.dumps(named, indent=2) + "\n")
            return
        theirs, before = _read(path)
        _require_same_files(self.folder, before, files)
        theirs = choices.flat(theirs)
        if longer and theirs | {"rounds": ours["rounds"]} == ours != theirs:
            self._begin_again(named)
            return
        unlike = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        if unlike:
            there = _listed(unlike, theirs)
            msg = (
                f"Expected the config of the run in workdir={self.folder} ({there}), "
                f"got {_listed(unlike, ours)}: take another workdir"
            )
            msg += ", or extend the run." if unlike == ["rounds"] else "."
            raise ValueError(msg)

    def _begin_again(self, named: Mapping[str, Any]) -> None:
        """Makes the run one that has not ended, of another length."""
        every = int(named["eval_every"])
        # A last row between two evaluations a longer run would not have.
        self.keep_rows(lambda rows: sum(int(r["round"]) % every == 0 for r in rows))
        (self.folder / self._files.summary).unlink(missing_ok=True)
        write_text(self.folder / "config.json", json.dumps(named, indent=2) + "\n")


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the sections and keys of the config.json at `path`.

    Raises:
      ValueError: for a file that was damaged, or that another version wrote.
    """
    return _read(path)[0]


def config_of(workdir: str | os.PathLike, defaults: ConfigDict) -> ConfigDict:
    """Returns the config of the run in a folder.

    Args:
      workdir: the folder.
      defaults: a config with every key that one may have, and their values where the
        run's does not say them.

    Raises:
      ValueError: for a folder without a run, or with one of other keys.
    """
    path = pathlib.Path(workdir) / "config.json"
    if not path.is_file():
        msg = f"Expected workdir to be the folder of a run, got workdir={workdir}."
        raise ValueError(msg)
    config = defaults.copy_and_resolve_references()
    try:
        config.update(read_config(path))
    except (KeyError, AttributeError):
        msg = (
            "Expected workdir to be the folder of a run with the keys of "
            f"configs/default.py, got workdir={workdir}."
        )
        raise ValueError(msg) from None
    return config


def _digests(keys: Mapping[str, Any]) -> dict[str, str]:
    """Returns the digests of arrays and tables that `keys` name, by where they are."""
    source = keys.get("model.init_from")
    found = {source: arrays.digest(weights.read(source))} if source else {}
    for key in ("cohort.available", "cohort.times"):
        if str(path := keys.get(key, "")).endswith(".csv"):
            raw = pathlib.Path(path).read_bytes()
            found[path] = hashlib.sha256(raw).hexdigest()
    return found


def _require_same_files(folder, theirs: Mapping[str, str], ours) -> None:
    """Raises if a file of one's own is not the one with which the run began."""
    for name, digest in ours.items():
        if theirs.get(name, digest) != digest:
            msg = (
                f"Expected the file of {name} as it was when the run in workdir="
                f"{folder} began, and it has changed: take another workdir."
            )
            raise ValueError(msg)


def _read(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the config that a file holds, and the digests of one's own files."""
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        msg = f"Expected {path} to be a config as it was written, got: {error}."
        raise ValueError(msg) from None
    if not isinstance(config, dict):
        msg = f"Expected {path} to be a config, got a {type(config).__name__}."
        raise ValueError(msg)
    kind = config.pop("format", 1)
    if kind != FORMAT:
        msg = (
            f"Expected a workdir of format {FORMAT}, got workdir={path.parent} of "
            f"format {kind}: only the version of fl_sketch that began it can read it. "
            "Take another workdir."
        )
        raise ValueError(msg)
    files = config.pop(PLUGINS, {})
    return config, files


def _listed(keys: Sequence[str], flat: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{key}={flat.get(key)!r}" for key in keys[:3])
    return shown + (", ..." if len(keys) > 3 else "")
