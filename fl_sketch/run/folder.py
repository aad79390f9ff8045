"""A run in a folder, as a callback: it resumes exactly, and counts what it spent.

A folder knows the secret of a private run, the noise and the plan by which its rounds
were counted, and the program by which they were played. Whatever else could get the
same noise is refused. Only the first process of a run reads and writes the folder, and
sends the others what they need.
"""

import io
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core import chacha, secret, untrusted_files
from fl_sketch.core.protocols import Roots
from fl_sketch.core.secret import Secret
from fl_sketch.engine import multiprocess
from fl_sketch.engine.experiment import Experiment
from fl_sketch.engine.loop import Callback, NotFinite, Progress, Result
from fl_sketch.engine.loop import initial as beginning
from fl_sketch.engine.recorder import ABSENCES, Row
from fl_sketch.privacy.guarantee import RANDOMNESS
from fl_sketch.workdir import checkpoint, odometer, rows, secrets, weights
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.identity import Identity
from fl_sketch.workdir.odometer import RUN

CHECK = "secret"  # in checkpoints: the check value of the secret
Say = Callable[[str], None]


class About(NamedTuple):
    """What a folder has of a run beside what the run computes.

    Attributes:
      config: the contents of config.json, nested.
      facts: what is known before the run, for its summary.
      model: the contents of params.json.
      frozen: what does not train of the model, by name.
    """

    config: Mapping[str, Any]
    identity: Identity
    facts: Mapping[str, Any] = {}
    model: Mapping[str, Any] = {}
    frozen: Mapping[str, Any] = {}


class Folder(Callback):
    """Keeps a run in a folder, which no other process uses until it is closed.

    `workdir` is that folder in the first process, and None in the others. `ended` is
    the summary of a run that has ended before.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        experiment: Experiment,
        about: About,
        *,
        keep: int = checkpoint.KEEP,
        fixed_by: Callable[[int], str] = lambda before: "rounds",
        say: Say = print,
    ):
        """Opens a folder to begin or resume a run, or raises a ValueError in one line.

        Args:
          keep: how many checkpoints stay; 0: all.
          fixed_by: as `Workdir` has it.
          say: gets a line about what is not as it should be.
        """
        self._experiment, self._about, self._keep = experiment, about, keep
        self._say, self._extra, self._secret = say, {}, Secret(b"")
        guarantee = experiment.guarantee
        self._private = bool(guarantee and guarantee.private)
        self._simulated = not guarantee or guarantee.randomness == RANDOMNESS["seed"]
        self.workdir: Workdir | None = None
        if multiprocess.is_first():
            self.workdir = Workdir(
                path,
                about.config,
                about.identity,
                private=self._private,
                fixed_by=fixed_by,
                say=say,
            )
        try:
            found = self._from_first(lambda own: json.dumps(own.summary()).encode())
        except BaseException:
            self.__exit__(None)
            raise
        self.ended: Row | None = json.loads(found)

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        if self.workdir:
            if kind and issubclass(kind, NotFinite):  # it would diverge again
                secrets.forget(self.workdir.folder)
            self.workdir.close()

    def _from_first(self, make: Callable[[Workdir], bytes]) -> bytes:
        """Returns what the first process makes of its folder, in all processes."""
        return multiprocess.from_first(make(self.workdir) if self.workdir else b"")

    def on_plan(self, experiment: Experiment, roots: Roots) -> Roots:
        """Returns the roots with the secret with which the run began."""
        if not self._private:
            return roots
        new, guarantee = secret.of_roots(roots), experiment.guarantee
        assert guarantee

        def begun(folder: Workdir) -> bytes:
            own, entries = new, odometer.read(folder.folder)
            if not self._simulated:
                own = _secret_in(folder, new, entries)
            expected = guarantee.after(0)._replace(secret=own.check)
            for name, entry in entries.items():
                steps, last = entry.plan._replace(steps=0), expected.rounds
                if name != RUN or entry._replace(plan=steps, rounds=last) != expected:
                    msg = (
                        "Expected workdir to hold a run with the privacy plan of this "
                        f"one, got another in {folder.folder}/{odometer.FILE}: use "
                        "another workdir."
                    )
                    raise ValueError(msg)
            if not entries:
                with folder.writing():
                    odometer.note(folder.folder, {RUN: expected})
            return own.reveal()

        self._secret = Secret(self._from_first(begun))
        if self._simulated:
            return roots
        return roots._replace(secret=chacha.key_of(self._secret.reveal()))

    def on_start(self, progress: Progress) -> Progress:
        """Returns the newest progress in the folder."""
        like, packed = {"state": progress.state}, b""
        if self.workdir:
            saved = checkpoint.newest(self.workdir.checkpoints, like)
            if saved:
                path = checkpoint.path_of(self.workdir.checkpoints, saved.number)
                self.workdir.require_own(path, saved.extra)
                self._require_same_secret(path, saved.extra)
                if not multiprocess.several():
                    return self._resumed(progress, saved.tree, saved.extra)
                file = io.BytesIO()
                checkpoint.write(file, saved.tree, saved.extra)
                packed = file.getvalue()
        packed = multiprocess.from_first(packed)
        if not packed:
            return progress
        return self._resumed(progress, *checkpoint.read(io.BytesIO(packed), like))

    def _resumed(self, progress: Progress, tree, extra) -> Progress:
        """Returns the progress that a checkpoint has, placed as a new run is."""
        (recorder,), self._extra = progress.recorders, extra
        with untrusted_files.reading("the checkpoint", "to be unchanged"):
            recorder.resume(extra)
        state = jax.tree.map(
            lambda saved, leaf: jax.device_put(saved, leaf.sharding),
            tree["state"],
            progress.state,
        )
        return progress._replace(state=state)

    def _require_same_secret(self, path, extra: Mapping[str, np.ndarray]) -> None:
        """Raises if the rounds of a checkpoint had another secret."""
        before = extra.get(CHECK)
        now = self._secret.check if self._private else ""
        if before is not None and before.tobytes().decode() != now:
            msg = (
                f"Expected the secret of {path}, got another one: use another workdir."
            )
            raise ValueError(msg)

    def on_program(self, name: str) -> None:
        """Raises a ValueError if rounds were played by another program."""
        if self.workdir and self._private:
            folder = self.workdir.folder
            counted = odometer.read(folder)[RUN].plan.steps > 0
            with self.workdir.writing():
                secrets.keep_program(folder, self._secret, name, counted=counted)

    def on_compiled(self, progress: Progress) -> None:
        """Writes the rows as they were at this progress."""
        every, last = self._experiment.every, self._experiment.last

        def restored(folder: Workdir) -> bytes:
            folder.restore(self._extra, every, last)
            return json.dumps(folder.rows).encode()

        found = json.loads(self._from_first(restored))
        progress.rows[:] = map(rows.values, found)

    def before_chunk(self, last: int) -> None:
        """Counts what is about to be released."""
        guarantee = self._experiment.guarantee
        if self.workdir and self._private and guarantee:
            entry = guarantee.after(last)._replace(secret=self._secret.check)
            with self.workdir.writing():
                odometer.note(self.workdir.folder, {RUN: entry})

    def on_row(self, row: Row, progress: Progress) -> None:
        """Writes a row, to the disk."""
        del progress
        if self.workdir:
            self.workdir.add(row)

    def on_checkpoint(self, progress: Progress) -> None:
        """Saves progress; where that fails, only the last round is an error."""
        if not self.workdir:
            return
        (recorder,), done = progress.recorders, progress.done
        folder = self.workdir.checkpoints
        try:
            extra = {**self.workdir.extra(), **recorder.arrays()}
            extra |= {CHECK: self._secret.check.encode()} if self._private else {}
            tree = {"state": progress.state}
            checkpoint.save(folder, done, tree, keep=self._keep, extra=extra)
        except OSError as error:
            if done == self._experiment.last:
                msg = (
                    f"Expected room in {folder} for the model after round {done}, got "
                    f"{error.strerror}: run the same command again to resume."
                )
                raise ValueError(msg) from None
            last = checkpoint.rounds(folder)
            before = f"that of round {last[-1]}" if last else "none"
            self._say(
                f"warning: the checkpoint of round {done} could not be written "
                f"({error.strerror}); training continues. Last checkpoint: {before}."
            )

    def done(self) -> int:
        """Returns the round of the newest checkpoint; 0: there is none."""
        assert self.workdir
        return max(checkpoint.rounds(self.workdir.checkpoints), default=0)

    def finish(self, result: Result, more: Row = {}) -> Row:  # noqa: B006
        """Writes the model and the summary, with `more`; returns the latter."""
        summary = self._summary(result, more)
        if not self.workdir:
            return summary
        summary |= {"params_digest": self._write_model(summary["rounds"])}
        with self.workdir.writing():
            public = {*self._about.facts, "params_digest"}
            summary = self.workdir.finish(summary, public=public)
        secrets.forget(self.workdir.folder)
        return summary

    def _summary(self, result: Result, more: Row) -> Row:
        """Returns the facts of a run, its last row, `more`, and totals."""
        book, guarantee = result.state.ledger, self._experiment.guarantee
        promise = guarantee if self._private else None
        last = {**result.history[-1]}
        up, down = int(book.up.sum()), int(book.down.sum())
        absences = {name: float(last[name]) for name in ABSENCES if name in last}
        apart = ("round", "epsilon", "delta", "randomness", *absences)
        measured = {
            name: float(value) if isinstance(value, int | float) else value
            for name, value in last.items()
            if name not in apart and not name.startswith("bytes_")
        }
        return {
            **self._about.facts,
            "rounds": int(result.state.server.round),
            **measured,
            **more,
            **absences,
            "bytes_up_per_client_round": up / max(1, int(book.answered.sum())),
            "bytes_down_per_client_round": down / max(1, int(book.asked.sum())),
            "bytes_up_total": up,
            "bytes_down_total": down,
            "epsilon": promise and float(last["epsilon"]),
            "delta": promise and promise.delta,
            "rounds_per_second": result.speed,
            "compile_seconds": result.seconds,
        }

    def complete(self) -> None:
        """Writes what is missing of a run that was killed in its last moment."""
        if self.workdir and self.ended:
            secrets.forget(self.workdir.folder)
            if not (self.workdir.folder / weights.FILE).exists():
                self._write_model(self.ended["rounds"])

    def _write_model(self, number: int) -> str:
        assert self.workdir
        seen = sorted(self._about.identity.trained_on)
        model = {**self._about.model, weights.TRAINED_ON: seen}
        with self.workdir.writing():
            folder, frozen = self.workdir.folder, self._about.frozen
            return weights.write_model(folder, number, frozen, model)

    def end(self, roots: Roots) -> Progress:
        """Returns the end of a run that has ended before, and all its rows.

        The folder stays as it is.
        """
        assert self.workdir and self.ended
        progress = beginning(self._experiment, roots)
        folder, number = self.workdir.checkpoints, self.ended["rounds"]
        saved = checkpoint.of_round(folder, number, {"state": progress.state})
        self.workdir.require_own(checkpoint.path_of(folder, number), saved.extra)
        progress = self._resumed(progress, saved.tree, saved.extra)
        return progress._replace(rows=[*map(rows.values, self.workdir.rows_there())])


def _secret_in(folder: Workdir, new: Secret, entries: odometer.Entries) -> Secret:
    """Returns the secret of the run in a folder, or a new one that is now kept."""
    place = folder.folder
    if not entries:  # no round was released, since they are counted beforehand
        if folder.table.exists() or checkpoint.rounds(folder.checkpoints):
            msg = (
                f"Expected {odometer.FILE} in workdir={place}, to count the privacy of "
                "its rounds, got none: use another workdir."
            )
            raise ValueError(msg)
        with folder.writing():
            secrets.keep(place, new)
        return new
    kept = secrets.kept(place)
    if kept is None:
        msg = (
            f"Expected the secret of the run in workdir={place}, got none, as after "
            "the end of a run: its rounds would be released again with other noise. "
            "Use another workdir."
        )
        raise ValueError(msg)
    if entries[RUN].secret != kept.check:
        msg = (
            f"Expected {place / secrets.FILE} to be unchanged, got a damaged one: "
            "rounds would be released again with other noise. Use another workdir."
        )
        raise ValueError(msg)
    return kept
