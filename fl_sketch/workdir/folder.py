"""What a run leaves in its folder, and how a later run finds its way back.

config.json, metrics.csv (a row for each evaluation), checkpoints/, and at the end
summary.json and curves.png. A reader never sees half of a file. A sweep leaves the
same under other names.
"""

import contextlib
import fcntl
import json
import math
import os
import pathlib
import resource
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fl_sketch.core import untrusted_files
from fl_sketch.core.files import unlinked, writable_folder, write_text
from fl_sketch.core.mappings import flat
from fl_sketch.workdir import checkpoint, curves, kept_config
from fl_sketch.workdir.identity import (
    ACCEPTED,
    Identity,
    difference,
    files_of,
    stamp,
    versions,
)
from fl_sketch.workdir.kept_config import FILES, FORMAT, IDENTITY, LENGTHS
from fl_sketch.workdir.rows import MARK
from fl_sketch.workdir.table import Row, Table

BESIDE_ROWS = ("clients.csv", MARK + "clients.csv")  # what a run adds to as well
LINKED = ("checkpoints", "tensorboard", "mlflow")  # folders that would be followed
SUMMARY = "to be a summary as it was written"
TIMES = ("rounds_per_second", "seconds")  # what two equal runs may differ in


class Files(NamedTuple):
    """What the files of a folder are called, and how its picture is drawn.

    Attributes:
      rows: the csv file of evaluations.
      summary: the json file that stands for a finished run.
      picture: the png file.
      draw: `(rows, path)`, writes the picture.
      kept: whether checkpoints hold the rows; else a sum stands for them.
    """

    rows: str
    summary: str
    picture: str
    draw: Callable[[Sequence[Row], os.PathLike], None]
    kept: bool = False


RUN = Files("metrics.csv", "summary.json", "curves.png", curves.draw, kept=True)


class Workdir:
    """The `folder` of a run and its `rows`, locked until closed or the process ends."""

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        files: Files = RUN,
        identity: Identity = Identity(),  # noqa: B008 - immutable
        *,
        longer: bool = False,
        accept: Collection[str] = (),
    ):
        """Opens a folder for a run, or to go on with one.

        Args:
          path: the folder.
          config: the config of the run.
          files: the names of its files, and what draws its picture.
          identity: what the run is made of beside its config.
          longer: whether the run in the folder becomes one of more rounds.
          accept: names of what may differ from the run's beginning, as
            `identity.ACCEPTED` has them.

        Raises:
          ValueError: if it cannot be written, is in use, or holds the run of another
            config.
        """
        self.folder = writable_folder(path)
        for name in LINKED:
            if (self.folder / name).is_symlink():
                msg = f"Expected no link in workdir={path}, got {name}, which is one."
                raise ValueError(msg)
        self._table = Table(self.folder / files.rows, TIMES, summed=not files.kept)
        self._files, self._identity, self._accept = files, identity, accept
        plain = json.loads(json.dumps(config))
        self._keys = flat(plain)
        self._named = files_of(self._keys)
        self._lengths: list[int] = []
        self._longer: dict[str, Any] | None = None
        try:
            with contextlib.ExitStack() as stack:
                name = self.folder / ".lock"
                lock = stack.enter_context(open(name, "a", opener=unlinked))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._require_same(plain, longer)
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

    def beside(self) -> dict[str, bytes]:
        """Returns what a checkpoint is to say of its run: whose it is, and all rows."""
        found = {
            IDENTITY: json.dumps(self._stamp).encode(),
            self._files.rows: self._table.text.encode(),
        }
        for name in BESIDE_ROWS:
            path = self.folder / name
            found |= {name: path.read_bytes()} if path.exists() else {}
        return found

    def require_own(self, path: pathlib.Path, beside: Mapping[str, bytes]) -> None:
        """Raises unless a checkpoint is of this run.

        Args:
          path: path of the checkpoint.
          beside: what it says of its run, by the names of `beside`.

        Raises:
          ValueError: in one line, with what differs and how to go on.
        """
        with untrusted_files.reading(path, "to say whose checkpoint it is"):
            self._require_own(path, json.loads(beside[IDENTITY]), self._accept)

    @property
    def _stamp(self) -> dict[str, Any]:
        return stamp(self._keys, self._named, self._identity)

    def _require_own(self, path: pathlib.Path, theirs, accept: Collection[str]) -> None:
        """Raises unless a file that says of which run it is is of this one."""
        own = self._keys
        lengths = (own.get("rounds"), *self._lengths)
        longer = [own | {"rounds": rounds} for rounds in lengths]
        known = [stamp(keys, self._named, self._identity) for keys in longer]
        ours = next((o for o in known if o["config"] == theirs.get("config")), known[0])
        found = difference(ours, theirs, accept)
        if found:
            msg = f"Expected {path} to be of this run, got {found}."
            raise ValueError(msg)

    def restore(self, beside: Mapping[str, bytes]) -> bool:
        """Puts rows back to what a checkpoint says; without one there are none.

        Those that came later will be made again, the same. Not put back is the last one
        of a run that became longer, if it was between two evaluations.

        Args:
          beside: what the checkpoint says.

        Returns:
          Whether the file had all these rows before.
        """
        last, every = (self._keys.get(name, 1) for name in ("rounds", "eval_every"))

        def due(row: Row) -> bool:
            return int(row["round"]) % every == 0 or row["round"] == str(last)

        for name in BESIDE_ROWS:
            if name in beside:
                write_text(self.folder / name, beside[name].decode())
            else:
                (self.folder / name).unlink(missing_ok=True)
        text = beside.get(self._files.rows, b"").decode()
        return self._table.restore(text, due)

    def keep_rows(self, how_many: Callable[[list[Row]], int]) -> None:
        """Forgets all rows but the first ones, as many as `how_many` says of them.

        Raises:
          ValueError: in one line, for rows that were not written here.
        """
        self._table.keep(how_many)

    def add(self, *rows: Row) -> None:
        """Adds `rows` to the file of evaluations."""
        self._table.add(*rows)

    @property
    def has_rows(self) -> bool:
        """Whether there is a file of rows, of this run or of one that was killed."""
        return self._table.path.exists()

    @property
    def rows(self) -> list[Row]:
        """All rows of the file of evaluations."""
        return self._table.rows

    def finish(self, summary: Mapping[str, Any]) -> Row:
        """Writes the picture and the `summary`; returns the latter."""
        self._files.draw(self.rows, self.folder / self._files.picture)
        whole = {
            **summary,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "versions": versions(),
            IDENTITY: self._stamp,
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
        with untrusted_files.reading(path, SUMMARY):
            found = json.loads(path.read_text())
            theirs = found[IDENTITY]
            if found.get(LENGTHS, []) != self._lengths:
                return None
            self._require_own(path, theirs, ACCEPTED)
        return found

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
        path, ours, files = self.folder / "config.json", self._keys, self._named
        named = {"format": FORMAT, **config, IDENTITY: self._identity._asdict()}
        named |= {FILES: files} if files else {}
        if not path.exists():
            self._require_nobody_else()
            write_text(path, json.dumps(named, indent=2) + "\n")
            return
        kept = kept_config.read(path)
        theirs, self._lengths = flat(kept.config), kept.lengths
        if longer and theirs | {"rounds": ours["rounds"]} == ours != theirs:
            self._longer = {**named, LENGTHS: [*kept.lengths, theirs["rounds"]]}
            theirs = ours
        unlike = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        if unlike:
            there = _listed(unlike, theirs)
            msg = (
                f"Expected the config of the run in workdir={self.folder} ({there}), "
                f"got {_listed(unlike, ours)}: take another workdir"
            )
            msg += ", or extend the run." if unlike == ["rounds"] else "."
            raise ValueError(msg)
        before, now = (
            {f"the file of {name}": own for name, own in one.items()}
            for one in (kept.files, files)
        )
        before |= {f"the data's {name}": own for name, own in kept.data.items()}
        now |= {f"the data's {name}": own for name, own in self._identity.data.items()}
        _require_as_before(self.folder, before, now)

    def _require_nobody_else(self) -> None:
        """Raises for a folder whose config is lost, if what is left is not this run's.

        Versions and devices are looked at when the run goes on.
        """
        found, path = None, self.folder / self._files.summary
        with contextlib.suppress(Exception):  # who reads it will say what is wrong
            found = json.loads(path.read_text())[IDENTITY]
        with contextlib.suppress(Exception):
            last = checkpoint.rounds(self.checkpoints)[-1]
            newest = checkpoint.path_of(self.checkpoints, last)
            own = checkpoint.array_of(newest, f"{checkpoint.BESIDE}{IDENTITY}")
            found, path = json.loads(own.tobytes()), newest
        if found is not None:
            self._require_own(path, found, ACCEPTED)


def _require_as_before(folder, theirs: Mapping[str, str], ours) -> None:
    """Raises if a file or an array is not the one with which the run began."""
    for name in {**ours, **theirs}:
        if theirs.get(name) != ours.get(name):
            msg = (
                f"Expected {name} as it was when the run in workdir={folder} began, "
                "and it has changed: take another workdir."
            )
            raise ValueError(msg)


def _in_json(value: Any) -> Any:
    """Returns a value in words that JSON has: null for a number that is none."""
    if isinstance(value, Mapping):
        return {key: _in_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _listed(keys: Sequence[str], flat: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{key}={flat.get(key)!r}" for key in keys[:3])
    return shown + (", ..." if len(keys) > 3 else "")
