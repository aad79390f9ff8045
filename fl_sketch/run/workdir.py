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
import math
import os
import pathlib
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch import plugins
from fl_sketch.config import choices
from fl_sketch.files import unlinked, writable_folder, write_text
from fl_sketch.models import arrays
from fl_sketch.report import curves
from fl_sketch.run import weights

Row = dict[str, Any]
FORMAT = 2  # of a folder: what another one began, this version does not go on with
PLUGINS = "plugins"  # of files that a config names, their digests
LENGTHS = "extended_from"  # of a run that became longer, how long it was
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
        self._lengths: list[int] = []
        self._longer: dict[str, Any] | None = None
        self._ends_at = config.get("rounds", 0), config.get("eval_every", 1)
        try:
            with contextlib.ExitStack() as stack:
                name = self.folder / ".lock"
                lock = stack.enter_context(open(name, "a", opener=unlinked))
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
        """Forgets the rows after round `number`: they will be made again, the same.

        Forgotten is also the last one of a run that became longer, if it was between
        two evaluations.
        """
        last, every = self._ends_at

        def counts(done: int) -> bool:
            return done <= number and (done % every == 0 or done == last)

        self.keep_rows(lambda rows: sum(counts(int(row["round"])) for row in rows))

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
        path = self.folder / self._files.rows
        with open(path, "a", newline="", opener=unlinked) as file:
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
            **({LENGTHS: self._lengths} if self._lengths else {}),
        }
        path = self.folder / self._files.summary
        write_text(path, json.dumps(_in_json(whole), indent=2) + "\n")
        return whole

    def summary(self) -> Row | None:
        """Returns the summary, if the run has ended, and is not to become longer."""
        path = self.folder / self._files.summary
        if self._longer is not None or not path.exists():
            return None
        found = json.loads(path.read_text())
        return found if found.get(LENGTHS, []) == self._lengths else None

    def become_longer(self) -> None:
        """Makes the run the longer one that it was opened as, if it was.

        Until then nothing in the folder has changed, so that a run which is refused has
        ended as before. Then one file changes, by which all others are understood.
        """
        if self._longer is None:
            return
        text = json.dumps(self._longer, indent=2) + "\n"
        write_text(self.folder / "config.json", text)
        (self.folder / self._files.summary).unlink(missing_ok=True)
        self._lengths, self._longer = self._longer[LENGTHS], None

    def _require_same(self, config: Mapping[str, Any], longer: bool) -> None:
        path, ours = self.folder / "config.json", choices.flat(config)
        files = plugins.digests(ours.values()) | _digests(ours)
        named = {"format": FORMAT, **config, **({PLUGINS: files} if files else {})}
        if not path.exists():
            write_text(path, json.dumps(named, indent=2) + "\n")
            return
        kept = _read(path)
        _require_same_files(self.folder, kept.files, files)
        theirs, self._lengths = choices.flat(kept.config), kept.lengths
        if longer and theirs | {"rounds": ours["rounds"]} == ours != theirs:
            self._longer = {**named, LENGTHS: [*kept.lengths, theirs["rounds"]]}
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


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the sections and keys of the config.json at `path`.

    Raises:
      ValueError: for a file that was damaged, or that another version wrote.
    """
    return _read(path).config


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


class _Kept(NamedTuple):
    """What a config.json holds.

    Attributes:
      config: the config.
      files: the digests of one's own files, by where they are.
      lengths: the numbers of rounds that the run had before it became longer.
    """

    config: dict[str, Any]
    files: dict[str, str]
    lengths: list[int]


def _read(path: pathlib.Path) -> _Kept:
    """Returns what a config.json holds."""
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
    files, lengths = config.pop(PLUGINS, {}), config.pop(LENGTHS, [])
    return _Kept(config, files, lengths)


def _in_json(value: Any) -> Any:
    """Returns what JSON has words for: of what is no number or infinite, null."""
    if isinstance(value, Mapping):
        return {key: _in_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _listed(keys: Sequence[str], flat: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{key}={flat.get(key)!r}" for key in keys[:3])
    return shown + (", ..." if len(keys) > 3 else "")
