"""The folder of a run or a sweep, in which the same command resumes.

config.json, metrics.csv (a row for each evaluation), checkpoints/, and at the end
summary.json and params.safetensors. A reader never sees half of a file. In a private
run these have only what may be published; simulator.csv and simulator.json have the
rest. A checkpoint says how many rows there were; later ones are made again, the same.
"""

import contextlib
import csv
import fcntl
import itertools
import json
import os
import pathlib
import resource
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files, platforms, untrusted_files
from fl_sketch.core.mappings import for_json
from fl_sketch.workdir import identity as identities
from fl_sketch.workdir import odometer
from fl_sketch.workdir import rows as tables
from fl_sketch.workdir.identity import IDENTITY, Identity
from fl_sketch.workdir.rows import SIMULATOR
from fl_sketch.workdir.weights import CONFIG, SUMMARY

METRICS = "metrics.csv"
KEY, KEY_BYTES = ".data_key", 32  # of digests of private data
FOLDERS = ("checkpoints", "tensorboard", SIMULATOR)  # a link in their place is followed
BOTH = ("point", "round")  # columns of both tables
ROWS = "rows"  # in a checkpoint: how many there were
TIMES = ("rounds_per_second", "seconds")  # in which equal runs may differ
Row = dict[str, Any]


class Workdir:
    """The `folder` of a run and its `rows`, locked until closed or the process ends."""

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        identity: Identity = Identity(),  # noqa: B008 - immutable
        *,
        rows: str = METRICS,
        summary: str = SUMMARY,
        private: bool = False,
        public: Collection[str] = (),
        fixed_by: Callable[[int], str] = lambda before: "rounds",
        say: Callable[[str], None] = warnings.warn,
    ):
        """Opens a folder to start or resume a run, or raises a ValueError in one line.

        Args:
          config: the config of the run, nested.
          rows: the name of the csv file of rows.
          summary: the name of the json file of a finished run.
          private: whether these files must have only what may be published.
          public: columns that may be, beside those that `rows` knows.
          fixed_by: `(rounds) -> text` on what depends on their number, so that the run
            may not grow; empty: nothing.
          say: gets a line if versions or devices are not those of the beginning.
        """
        self.folder = files.writable_folder(path)
        if links := [n for n in (*FOLDERS, rows) if (self.folder / n).is_symlink()]:
            msg = f"Expected no symbolic links in workdir={path}, got {links[0]}."
            raise ValueError(msg)
        self.rows: list[Row] = []
        self.table, self._summary = self.folder / rows, self.folder / summary
        self._private, self._public = private, public
        try:
            with contextlib.ExitStack() as stack:
                lock = open(self.folder / ".lock", "a", opener=files.unlinked)  # noqa: SIM115
                fcntl.flock(stack.enter_context(lock), fcntl.LOCK_EX | fcntl.LOCK_NB)
                begun = (self.folder / CONFIG).exists()
                ours = identities.contents(config, self._keyed(identity, begun))
                if begun:
                    ours = self._resumed(ours, fixed_by, say)
                else:
                    self._require_new()
                    files.write_text(self.folder / CONFIG, _text(ours))
                self._digest = identities.digest(ours)
                self._held = stack.pop_all()
        except BlockingIOError:
            msg = f"Expected a workdir that no process uses, got workdir={path} in use."
            raise ValueError(msg) from None
        except OSError as error:
            msg = f"Expected a writable workdir, got workdir={path} "
            raise ValueError(msg + f"({error.strerror}: {error.filename}).") from None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self) -> None:
        """Lets other processes have the folder."""
        self._held.close()

    def _keyed(self, own: Identity, begun: bool) -> Identity:
        """Returns an identity whose digests do not confirm guesses of private data."""
        if not own.keyed:
            return own
        path = self.folder / KEY
        if not begun:  # a key that was there could be another's
            files.write_private(path, os.urandom(KEY_BYTES), self.folder / f"{KEY}.new")
        key = path.read_bytes() if path.is_file() else b""
        if len(key) != KEY_BYTES:
            msg = f"Expected {path} of the run in this folder, got another or none: "
            raise ValueError(msg + "use another workdir.")
        return own.with_key(key)

    def _require_new(self) -> None:
        """Raises if a folder without a config.json has what a run left."""
        left = [self.table, self._summary, self.folder / odometer.FILE]
        left += self.checkpoints.glob("round_*")
        for path in filter(pathlib.Path.exists, left):
            msg = f"Expected {CONFIG} in workdir={self.folder} beside {path.name}, got "
            raise ValueError(msg + "none: use another workdir.")

    def _resumed(self, ours: Row, fixed_by, say: Callable[[str], None]) -> Row:
        """Returns the contents of config.json, if a run may resume; it may grow longer.

        A run that is refused has changed nothing.
        """
        path, where = self.folder / CONFIG, f"workdir={self.folder}"
        theirs = identities.read(path)
        there, here = identities.keys_of(theirs), identities.keys_of(ours)
        unlike = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        longer = unlike == ["rounds"] and there.get("rounds", 0) < here["rounds"]
        name, others = identities.unlike(ours, theirs)
        msg = ""
        if unlike and not longer:
            old, new = (
                ", ".join(f"{key}={one.get(key)!r}" for key in unlike[:3])
                for one in (there, here)
            )
            msg = f"Expected the config of the run in {where} ({old}), got {new}"
        elif name:
            msg = f"Expected {name} as in the run in {where}, got another"
        elif others and self._private:
            msg = f"Expected versions and devices of the private run in {path}, got "
            msg += f"others than {others}"
        if msg:
            raise ValueError(msg + ": use another workdir.")
        if others:
            say(f"warning: {path} has {others}: last bits may differ")
        if longer:
            before, ended = there["rounds"], self._private and self._summary.exists()
            if reason := fixed_by(before) or "the end of a private run" * ended:
                msg = f"Expected rounds={before}, as in {where}, got "
                raise ValueError(msg + f"rounds={here['rounds']}: fixed by {reason}.")
            self._summary.unlink(missing_ok=True)
            theirs["rounds"] = ours["rounds"]
            files.write_text(path, _text(theirs))
        return theirs

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    def extra(self) -> dict[str, bytes]:
        """Returns a checkpoint's entries on its run: the identity, and the rows."""
        count = str(len(self.rows)).encode()
        return {IDENTITY: self._digest.encode(), ROWS: count}

    def require_own(self, path: pathlib.Path, extra: Mapping[str, np.ndarray]) -> None:
        """Raises a ValueError unless the checkpoint at `path` is of this run."""
        found = extra.get(IDENTITY)
        if found is None or found.tobytes() != self._digest.encode():
            msg = f"Expected {path} to be of this run, got another's: remove it, or "
            raise ValueError(msg + "use another workdir.")

    def restore(self, extra: Mapping[str, np.ndarray], every: int, last: int) -> None:
        """Keeps the rows that a checkpoint counts; without a checkpoint there are none.

        A row between two evaluations, the last of a shorter run, is dropped.
        """
        count = int(extra[ROWS].tobytes()) if ROWS in extra else 0
        rows = self.rows_there()[:count]
        if len(rows) < count:
            msg = f"Expected the {count} rows of the checkpoint in {self.table}, got "
            raise ValueError(msg + f"{len(rows)}: restore it, or use another workdir.")
        numbers = [int(row["round"]) for row in rows]
        kept = [number % every == 0 or number >= last for number in numbers]
        self.rows = [*itertools.compress(rows, kept)]
        self._write_all()

    @contextlib.contextmanager
    def writing(self, path: pathlib.Path | None = None) -> Iterator[None]:
        """Raises a ValueError in one line for a file that cannot be written."""
        try:
            yield
        except OSError as error:
            msg = f"Expected to write {path or error.filename}, got {error.strerror}: "
            raise ValueError(msg + "run the same command again to resume.") from None

    def rows_there(self) -> list[Row]:
        """Returns the whole rows that the files have."""
        try:
            return tables.read(self.table)
        except (OSError, ValueError, csv.Error):  # torn, or edited
            return []

    def keep_rows(self, count: int) -> None:
        """Keeps the first `count` rows that the files have, and no others."""
        self.rows = self.rows_there()[:count]
        self._write_all()

    def add(self, *rows: Row) -> None:
        """Adds `rows` to the files of evaluations, and to the disk."""
        known = list((self.rows or rows)[0])  # as they stand in the head
        first, more = not self.rows, {name for row in rows for name in row}
        self.rows.extend(rows)
        if more - {*known}:  # of another program
            names = dict.fromkeys(name for row in self.rows for name in row)
            self.rows = [dict.fromkeys(names, "") | row for row in self.rows]
            self._write_all()
            return
        how: dict[str, Any] = {"extrasaction": "ignore", "lineterminator": "\n"}
        for path, columns in self._tables(known).items():
            with self.writing(path), open(path, "a", opener=files.unlinked) as file:
                writer = csv.DictWriter(file, columns, **how)
                if first:
                    writer.writeheader()
                writer.writerows(rows)
                file.flush()
                os.fsync(file.fileno())

    def _tables(self, columns: Sequence[str]) -> dict[pathlib.Path, list[str]]:
        """Returns the files of rows, with the columns that each of them has."""
        if not self._private:
            return {self.table: list(columns)}
        shown = tables.published(dict.fromkeys(columns), self._public)
        hidden = [name for name in columns if name in BOTH or name not in shown]
        return {self.table: list(shown), self.folder / f"{SIMULATOR}.csv": hidden}

    def _write_all(self) -> None:
        for path, columns in self._tables([*self.rows[0]] if self.rows else ()).items():
            with self.writing(path):
                if self.rows:
                    part = [{name: row[name] for name in columns} for row in self.rows]
                    files.write_rows(path, part)
                else:
                    path.unlink(missing_ok=True)

    def finish(
        self, summary: Mapping[str, Any], public: Collection[str] | None = None
    ) -> Row:
        """Writes the `summary`, by which the run is known to be done; returns it.

        Args:
          public: entries that a private run may publish, beside those that `rows`
            knows; None: all of them.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        own = {"peak_rss_mb": peak, "versions": platforms.versions()}
        own[IDENTITY] = self._digest
        whole = shown = {**summary, **own}
        if self._private and public is not None:
            shown = tables.published(whole, {*public, "versions", IDENTITY})
            hidden = {name: one for name, one in whole.items() if name not in shown}
            files.write_text(self.folder / f"{SIMULATOR}.json", _text(for_json(hidden)))
        files.write_text(self._summary, _text(for_json(shown)))
        return whole

    def summary(self) -> Row | None:
        """Returns the whole summary, if the run has ended."""
        found = summary_in(self.folder, self._summary.name)
        if found is not None and found.get(IDENTITY) != self._digest:
            msg = f"Expected {self._summary} to be of this run, got another's."
            raise ValueError(msg)
        return found


def summary_in(folder: pathlib.Path, name: str = SUMMARY) -> Row | None:
    """Returns the summary in a folder, with what simulator.json has; None: no end."""
    if not (folder / name).exists():
        return None
    whole: Row = {}
    for path in (folder / name, folder / f"{SIMULATOR}.json"):
        if path.exists():
            with untrusted_files.reading(path, "to be an unchanged summary"):
                whole |= dict(json.loads(path.read_text()))
    return whole


def _text(whole: Mapping[str, Any]) -> str:
    return json.dumps(whole, indent=2) + "\n"
