"""The folder of a run or a sweep, in which the same command resumes.

config.json, metrics.csv (a row for each evaluation), checkpoints/, and at the end
summary.json and params.safetensors. A reader never sees half of a file. The rows of a
run are also in its checkpoints, from which metrics.csv is written again on resume.
"""

import contextlib
import csv
import fcntl
import io
import json
import os
import pathlib
import resource
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files, untrusted_files
from fl_sketch.core.mappings import flat, for_json
from fl_sketch.workdir import checkpoint, config_file, identity, origin
from fl_sketch.workdir.config_file import FILES, FORMAT, IDENTITY, LENGTHS
from fl_sketch.workdir.identity import ACCEPTED, Identity
from fl_sketch.workdir.origin import CONFIG, KEY, TRAINED_ON, TrainedOn
from fl_sketch.workdir.rows import MARK

METRICS, SUMMARY = "metrics.csv", "summary.json"
ALSO_ROWS = ("clients.csv", MARK + "clients.csv")  # further tables of a run
FOLDERS = ("checkpoints", "tensorboard", "mlflow")  # a link in their place is followed
STILL = "the part of the model that does not train"
TIMES = ("rounds_per_second", "seconds")  # in which equal runs may differ
Row = dict[str, Any]


class Workdir:
    """The `folder` of a run and its `rows`, locked until closed or the process ends.

    `trained_on` is the data that its model has seen, as json has it.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        identity: Identity = Identity(),  # noqa: B008 - immutable
        *,
        rows: str = METRICS,
        summary: str = SUMMARY,
        longer: bool = False,
        accept: Collection[str] = (),
        extend: str = "extend the run",
    ):
        """Opens a folder to start or resume a run.

        Args:
          config: the config of the run, nested.
          rows: the name of the csv file of rows.
          summary: the name of the json file that a finished run has.
          longer: whether the run in the folder becomes one of more rounds.
          accept: names of `identity.ACCEPTED` that may differ from the run's beginning.
          extend: how to play more rounds than the run in the folder has, in words.

        Raises:
          ValueError: if it cannot be written, is in use, or holds the run of another
            config.
        """
        self.folder = files.writable_folder(path)
        for name in FOLDERS:
            if (self.folder / name).is_symlink():
                msg = (
                    f"Expected no symbolic link in workdir={path}, got the link {name}."
                )
                raise ValueError(msg)
        self.rows: list[Row] = []
        self._table, self._summary = self.folder / rows, self.folder / summary
        self._accept, self._longer, self._extend = accept, None, extend
        self._config = json.loads(json.dumps(config))
        self._keys, self._lengths = flat(self._config), list[int]()
        try:
            with contextlib.ExitStack() as stack:
                lock = open(self.folder / ".lock", "a", opener=files.unlinked)  # noqa: SIM115
                fcntl.flock(stack.enter_context(lock), fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._adopt(identity)
                self._require_same(longer)
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
        self._held.close()

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def has_rows(self) -> bool:
        """Whether there is a file of rows, of this run or of one that was killed."""
        return self._table.exists()

    def extra(self) -> dict[str, bytes]:
        """Returns what a checkpoint holds of its run: whose it is, and all rows."""
        untimed = [
            row | {name: "nan" for name in TIMES if name in row} for row in self.rows
        ]
        found = {
            IDENTITY: json.dumps(self._stamp).encode(),
            METRICS: _csv_text(untimed).encode(),
        }
        for name in ALSO_ROWS:
            path = self.folder / name
            found |= {name: path.read_bytes()} if path.exists() else {}
        return found

    def require_own(self, path: pathlib.Path, extra: Mapping[str, np.ndarray]) -> None:
        """Raises a ValueError unless the checkpoint at `path` is of this run."""
        with untrusted_files.reading(path, "to say whose checkpoint it is"):
            theirs = json.loads(extra[IDENTITY].tobytes())
            self._require_stamp(path, theirs, self._accept)

    def restore(self, extra: Mapping[str, np.ndarray], last: int) -> None:
        """Writes the rows that a checkpoint holds; without a checkpoint there are none.

        Later rows will be made again, the same. A row between two evaluations is
        dropped if it is of a round before the `last` of this run, which became longer.
        """
        every = self._keys.get("eval_every", 1)
        for name in ALSO_ROWS:
            if name in extra:
                files.write_text(self.folder / name, extra[name].tobytes().decode())
            else:
                (self.folder / name).unlink(missing_ok=True)
        self.rows = [
            row
            for row in self.rows_in(extra)
            if int(row["round"]) % every == 0 or int(row["round"]) >= last
        ]
        self._write_all()

    def rows_in(self, extra: Mapping[str, np.ndarray]) -> list[Row]:
        """Returns the rows that a checkpoint holds, with times from the file."""
        text = extra[METRICS].tobytes().decode() if METRICS in extra else ""
        timed = {row.get("round"): row for row in _rows_in(self._table)}
        rows = list[Row]()
        for row in csv.DictReader(io.StringIO(text, newline="")):
            before = timed.get(row["round"], {})
            row |= {name: before.get(name, row[name]) for name in TIMES if name in row}
            rows.append(row)
        return rows

    @contextlib.contextmanager
    def writing(self, path: pathlib.Path | None = None) -> Iterator[None]:
        """Raises a ValueError in one line for a file that cannot be written."""
        try:
            yield
        except OSError as error:
            msg = (
                f"Expected to write {path or error.filename}, got "
                f"{error.strerror}: run the same command again to resume."
            )
            raise ValueError(msg) from None

    def rows_there(self) -> int:
        """Returns how many whole rows the file has."""
        return len(_rows_in(self._table))

    def keep_rows(self, count: int) -> None:
        """Keeps the first `count` rows that the file has, and no others."""
        self.rows = _rows_in(self._table)[:count]
        self._write_all()

    def add(self, *rows: Row) -> None:
        """Adds `rows` to the file of evaluations, and to the disk."""
        columns = list((self.rows or rows)[0])  # as they stand in the head
        more = dict.fromkeys(name for row in rows for name in row)
        if [name for name in more if name not in columns]:  # of another program
            whole = dict.fromkeys([*columns, *more], "")
            self.rows = [whole | row for row in (*self.rows, *rows)]
            self._write_all()
            return
        text = _csv_text(rows, columns, head=not self.rows)
        with (
            self.writing(self._table),
            open(self._table, "a", newline="", opener=files.unlinked) as file,
        ):
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.rows.extend(rows)

    def finish(self, summary: Mapping[str, Any]) -> Row:
        """Writes the `summary`, by which the run is known to be done; returns it."""
        whole = {
            **summary,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "versions": identity.versions(),
            IDENTITY: self._stamp,
            **({LENGTHS: self._lengths} if self._lengths else {}),
        }
        files.write_text(self._summary, json.dumps(for_json(whole), indent=2) + "\n")
        return whole

    def summary(self) -> Row | None:
        """Returns the summary, if the run has ended, and is not to become longer."""
        if self._longer is not None or not self._summary.exists():
            return None
        with untrusted_files.reading(self._summary, "to be an unchanged summary"):
            summary = json.loads(self._summary.read_text())
            stamp = summary[IDENTITY]
            if summary.get(LENGTHS, []) != self._lengths:
                return None
            self._require_stamp(self._summary, stamp, ACCEPTED)
        return summary

    def become_longer(self) -> None:
        """Makes the run the longer one that it was opened as, if it was.

        Until then nothing in the folder has changed, so that a run which is refused has
        ended as before. Then one file changes, by which all others are understood.
        """
        if self._longer is None:
            return
        text = json.dumps(self._longer, indent=2) + "\n"
        files.write_text(self.folder / CONFIG, text)
        self._summary.unlink(missing_ok=True)
        self._lengths, self._longer = self._longer[LENGTHS], None

    @property
    def _stamp(self) -> dict[str, Any]:
        return identity.stamp(self._keys, self._files, self._identity)

    def _adopt(self, own: Identity) -> None:
        """Takes over what the run is made of, with the keys of this folder's digests.

        The key of its own data is always a fresh one. It is followed by the keys of
        initial weights, so that the data which these have seen are recognised.
        """
        before, keys = own.weights or TrainedOn(), origin.keys_in(self.folder)
        if not (self.folder / KEY).exists():
            mine = (os.urandom(origin.KEY_BYTES),) if own.keyed else ()
            keys = *mine, *before.keys
            if keys:
                partial = self.folder / f"{KEY}.partial"
                files.write_private(self.folder / KEY, b"".join(keys), partial)
        elif own.keyed and not keys:
            msg = f"Expected {KEY} in workdir={self.folder} to be unchanged, got a "
            raise ValueError(msg + "damaged one: use another workdir.")
        key = keys[0] if own.keyed else b""
        data = {name: origin.keyed(one, key) for name, one in own.data.items()}
        program = origin.keyed(own.program, key) if own.program else ""
        self._identity = own._replace(data=data, program=program)
        self._files = identity.files_of(self._keys)
        names, digests = before.names, before.digests
        if not self._keys.get("data.public"):
            names = *names, str(self._keys.get("data.name", ""))
            digests += tuple(data[one] for one in data if one.startswith("train_"))
        self.trained_on = TrainedOn(names, digests, keys + before.keys).record()

    def _require_stamp(self, path, theirs, accept: Collection[str]) -> None:
        """Raises unless a file with a stamp is of this run, at one of its lengths."""
        lengths = (self._keys.get("rounds"), *self._lengths)
        known = [
            identity.stamp(self._keys | {"rounds": n}, self._files, self._identity)
            for n in lengths
        ]
        ours = next((o for o in known if o["config"] == theirs.get("config")), known[0])
        reason = identity.difference(ours, theirs, accept)
        if reason:
            msg = f"Expected {path} to be of this run, got {reason}."
            raise ValueError(msg)

    def _require_same(self, longer: bool) -> None:
        """Writes config.json, or raises unless it is that of this run."""
        path, ours = self.folder / CONFIG, self._keys
        own = self._identity
        about = {"data": own.data, "versions": own.versions, "devices": own.devices}
        about |= {"frozen": own.frozen} if own.frozen else {}
        whole = {"format": FORMAT, **self._config, IDENTITY: about}
        whole |= {TRAINED_ON: self.trained_on}
        whole |= {FILES: self._files} if self._files else {}
        if not path.exists():
            self._require_own_remains()
            files.write_text(path, json.dumps(whole, indent=2) + "\n")
            return
        before = config_file.read(path)
        theirs, self._lengths = flat(before.config), before.lengths
        if longer and theirs | {"rounds": ours["rounds"]} == ours != theirs:
            self._longer = {**whole, LENGTHS: [*before.lengths, theirs["rounds"]]}
            theirs = ours
        unlike = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        if unlike:
            msg = (
                f"Expected the config of the run in workdir={self.folder} "
                f"({_listed(unlike, theirs)}), got {_listed(unlike, ours)}: use "
                "another workdir"
            )
            msg += f", or {self._extend}." if unlike == ["rounds"] else "."
            raise ValueError(msg)
        for what, old, new in (
            ("the file of ", before.files, self._files),
            ("the data's ", before.data, own.data),
            (STILL, {"": before.frozen}, {"": own.frozen}),
        ):
            for name in {**new, **old}:
                if old.get(name) != new.get(name):
                    msg = (
                        f"Expected {what}{name} to be unchanged since the run in "
                        f"workdir={self.folder} began, got another: use another "
                        "workdir."
                    )
                    raise ValueError(msg)

    def _require_own_remains(self) -> None:
        """Raises if a folder without a config.json has what another run left.

        Files that cannot be read are refused by their readers.
        """
        stamp, path = None, self._summary
        with contextlib.suppress(Exception):
            stamp = json.loads(path.read_text())[IDENTITY]
        with contextlib.suppress(Exception):
            last = checkpoint.rounds(self.checkpoints)[-1]
            newest = checkpoint.path_of(self.checkpoints, last)
            saved = checkpoint.array_of(newest, checkpoint.EXTRA + IDENTITY)
            stamp, path = json.loads(saved.tobytes()), newest
        if stamp is not None:
            self._require_stamp(path, stamp, ACCEPTED)

    def _write_all(self) -> None:
        with self.writing(self._table):
            if self.rows:
                files.write_rows(self._table, self.rows)
            else:
                self._table.unlink(missing_ok=True)


def _rows_in(path: pathlib.Path) -> list[Row]:
    """Returns the whole rows of a csv file that may be missing, torn or edited."""
    try:
        rows = files.read_rows(path, whole=True)
    except (OSError, ValueError, csv.Error):
        return []
    return [dict(row) for row in rows if None not in row and None not in row.values()]


def _csv_text(
    rows: Sequence[Row], columns: Sequence[str] = (), *, head: bool = True
) -> str:
    """Returns rows as csv, with a `head` or without; empty, if there are none."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, columns or list(rows[0]), restval="", lineterminator="\n"
    )
    if head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _listed(keys: Sequence[str], values: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{key}={values.get(key)!r}" for key in keys[:3])
    return shown + (", ..." if len(keys) > 3 else "")
