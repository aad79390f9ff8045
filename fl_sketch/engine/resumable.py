"""A run in a folder: it keeps its secret, resumes exactly, and counts what it spent.

Only the first process of a run reads and writes the folder, and sends the others what
they need. In them the folder is None.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fl_sketch.engine import multiprocess
from fl_sketch.engine.loop import Compiled, NotFinite, Watch, play
from fl_sketch.engine.recorder import ABSENCES, Recorder, Row
from fl_sketch.engine.round import State
from fl_sketch.engine.sealing import from_first
from fl_sketch.engine.still import require_moving
from fl_sketch.engine.task import Task
from fl_sketch.workdir import checkpoint, odometer, secrets, weights
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.odometer import RUN

SECRET = "secret"  # in checkpoints: the check value of the secret
Say = Callable[[str], None]


class Progress(NamedTuple):
    """A run that can resume: its state, its record, and what its checkpoint had."""

    state: State
    recorder: Recorder
    extra: Mapping[str, Any] = {}

    @property
    def done(self) -> int:
        """The number of rounds done."""
        return int(self.state.server.round)


def begin(task: Task) -> Progress:
    """Returns the progress of a run that has not begun."""
    state = task.start(task.roots(task.secret))
    return Progress(state, Recorder.new(task.known, task.every))


@contextlib.contextmanager
def opened(workdir: Any, task: Task, **options: Any) -> Iterator[Workdir | None]:
    """Yields the folder of a run, in the first process; `options` are `Workdir`'s."""
    if not multiprocess.is_first():
        yield None
        return
    own = {"private": task.private, **options}
    with Workdir(workdir, task.config, task.identity, **own) as folder:
        yield folder


def ended_before(folder: Workdir | None) -> Row | None:
    """Returns the summary of a run that has ended, or None, in all processes."""
    return json.loads(
        from_first(folder, lambda folder: json.dumps(folder.summary()).encode())
    )


def resumed(folder: Workdir | None, task: Task) -> Progress:
    """Returns the newest progress in the folder, in all processes, or a new run."""
    fresh = begin(task)
    like = {"state": fresh.state}

    found = None
    if folder:
        saved = checkpoint.newest(folder.checkpoints, like)
        if saved:
            path = checkpoint.path_of(folder.checkpoints, saved.number)
            folder.require_own(path, saved.extra)
            _require_same_secret(path, task, saved.extra)
            found = saved.tree, saved.extra
    if multiprocess.several():
        found = _told(found, like)
    return _gone_on(fresh, *found) if found else fresh


def restore(folder: Workdir | None, task: Task, progress: Progress) -> None:
    """Writes the rows of a folder as they were at `progress`, before it goes on."""
    if folder:
        folder.restore(progress.extra, task.every, task.last)


def ended(folder: Workdir, task: Task, rounds: int) -> tuple[Progress, list[Row]]:
    """Returns the end of a run of so many rounds, which is done, and all its rows.

    The folder stays as it is.

    Raises:
      ValueError: without the checkpoint of its last round. An earlier one would be gone
        on from, and its rounds released once more.
    """
    fresh = begin(task)
    saved = checkpoint.of_round(folder.checkpoints, rounds, {"state": fresh.state})
    path = checkpoint.path_of(folder.checkpoints, rounds)
    folder.require_own(path, saved.extra)
    return _gone_on(fresh, saved.tree, saved.extra), folder.rows_there()


def _told(found: tuple | None, like: Any) -> tuple | None:
    """Returns the tree and the arrays that the first process found, in all of them."""
    packed = io.BytesIO()
    if found:
        checkpoint.write(packed, *found)
    whole = multiprocess.from_first(packed.getvalue())
    return checkpoint.read(io.BytesIO(whole), like) if whole else None


def _gone_on(fresh: Progress, tree, extra) -> Progress:
    """Returns the progress that a checkpoint holds, placed as a new run is."""
    fresh.recorder.resume(extra)
    state = jax.tree.map(_placed, tree["state"], fresh.state)
    return Progress(state, fresh.recorder, extra)


def _require_same_secret(path, task: Task, extra) -> None:
    """Raises if the rounds of a checkpoint had another secret."""
    before = extra.get(SECRET)
    if before is None or (task.private and task.secret is None):  # the run is done
        return
    now = task.secret.check.encode() if task.secret else b""
    if before.tobytes() != now:
        msg = f"Expected the secret of {path}, got another one: use another workdir."
        raise ValueError(msg)


def _placed(saved, leaf):
    """Returns a saved array where another one is: on devices, or on the host."""
    on_device = isinstance(leaf, jax.Array)
    return jax.device_put(saved, leaf.sharding) if on_device else saved


def play_on(
    task: Task,
    progress: Progress,
    compiled: Compiled,
    folder: Workdir | None = None,
    *,
    told: Sequence[Callable[[Row], None]] = (),
    say: Say = lambda line: None,
    watch: Watch = Watch(),  # noqa: B008 - immutable
) -> Progress:
    """Plays a run to its end, and writes rows and checkpoints to its folder.

    Args:
      told: functions that receive every row after it is in the folder.
      watch: further callbacks: `rounds`, `look`, `asked`.

    Raises:
      NotFinite: if the run diverges and its task has advice for that.
      StandsStill: at the first evaluation, if something should train and does not.
      Stopped: after saving, if the watch asks for it.
    """
    recorder = progress.recorder

    def rows_of(rows: list[Row], speed: float) -> None:
        (row,) = rows
        row |= {"rounds_per_second": speed}
        if folder:
            folder.add(row)
        for tell in told:
            tell(dict(row))  # which a caller may change

    def save(done: int, state: State) -> None:
        if folder:
            _save(folder, task, done, Progress(state, recorder), say)

    def count(last: int) -> None:
        guarantee = task.known.guarantee
        if folder and guarantee and task.secret:
            entry = guarantee.after(last)._replace(secret=task.secret.check)
            with folder.writing():
                odometer.note(folder.folder, {RUN: entry})

    look = _looking(task, watch.look)
    watch = watch._replace(rows=rows_of, save=save, ahead=count, lost=_lost(task))
    watch = watch._replace(look=look, agree=multiprocess.agree)
    saves = task.save_every if folder or multiprocess.several() else 0
    begun, rounds = progress.state, (progress.done, task.last)
    try:
        state = play(compiled, begun, [recorder], rounds, save_every=saves, watch=watch)
    except NotFinite:  # it would diverge again
        if folder:
            secrets.forget(folder.folder)
        raise
    return Progress(state, recorder)


def _looking(task: Task, look: Callable[[int, State], None]) -> Callable:
    """Returns `look`, which at the first evaluation requires that all parts move."""

    def looked(done: int, state: State) -> None:
        if task.standing and done <= task.every:
            require_moving(task.standing(state.server), done)
        look(done, state)

    return looked


def _lost(task: Task) -> Callable[[str], None]:
    """Returns a callback that ends a run which diverges, if its task has advice."""

    def lost(line: str) -> None:
        if task.advice:
            msg = f"{line}: {task.advice}."
            raise NotFinite(msg)

    return lost


def _save(folder: Workdir, task: Task, done: int, progress: Progress, say: Say) -> None:
    """Saves progress; where that fails, only the last round is an error."""
    try:
        extra = {**folder.extra(), **progress.recorder.arrays()}
        extra |= {SECRET: task.secret.check.encode()} if task.secret else {}
        tree = {"state": progress.state}
        checkpoint.save(folder.checkpoints, done, tree, keep=task.keep, extra=extra)
    except OSError as error:
        if done == task.last:
            msg = (
                f"Expected room in {folder.checkpoints} for the model after round "
                f"{done}, got {error.strerror}: run the same command again to resume."
            )
            raise ValueError(msg) from None
        last = checkpoint.rounds(folder.checkpoints)
        before = f"that of round {last[-1]}" if last else "none"
        say(
            f"warning: the checkpoint of round {done} could not be written "
            f"({error.strerror}); training continues. Last checkpoint: {before}."
        )


def finish(folder: Workdir, task: Task, summary: Row) -> Row:
    """Writes the model and the summary of a run that has ended; returns the latter."""
    digest = _write_model(folder, task, summary["rounds"])
    with folder.writing():
        whole = summary | {"params_digest": digest}
        whole = folder.finish(whole, public={*task.facts, "params_digest"})
    secrets.forget(folder.folder)
    return whole


def complete(folder: Workdir, task: Task, rounds: int) -> None:
    """Writes what is missing of a run that was killed in its last moment."""
    secrets.forget(folder.folder)
    if not (folder.folder / weights.FILE).exists():
        _write_model(folder, task, rounds)


def _write_model(folder: Workdir, task: Task, rounds: int) -> str:
    about = {**task.model, weights.TRAINED_ON: sorted(task.identity.trained_on)}
    with folder.writing():
        return weights.write_model(folder.folder, rounds, task.frozen, about)


def summary_of(
    task: Task,
    progress: Progress,
    last: Row,
    *,
    compile_seconds: float,
    more: Row = {},  # noqa: B006 - only read
) -> Row:
    """Returns the summary of a run: its facts, its last row, `more`, and totals."""
    book, guarantee = progress.recorder.ledger, task.known.guarantee
    promise = guarantee if task.private else None
    up, down = int(book.up.sum()), int(book.down.sum())
    absences = {name: float(last[name]) for name in ABSENCES if name in last}
    first = ("round", "epsilon", "delta", "randomness", "rounds_per_second", *absences)
    measured = {
        name: _number(value)
        for name, value in last.items()
        if name not in first and not name.startswith("bytes_")
    }
    return {
        **task.facts,
        "rounds": progress.done,
        **measured,
        **more,
        **absences,
        "bytes_up_per_client_round": up / max(1, int(book.answered.sum())),
        "bytes_down_per_client_round": down / max(1, int(book.asked.sum())),
        "bytes_up_total": up,
        "bytes_down_total": down,
        "epsilon": promise and float(last["epsilon"]),
        "delta": promise and promise.delta,
        "rounds_per_second": float(last["rounds_per_second"]),
        "compile_seconds": compile_seconds,
    }


def _number(value: Any) -> Any:
    """Returns a value as a number, or a text as it is."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
