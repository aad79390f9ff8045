"""The loop of every run: rounds in chunks of about a second, rows, and checkpoints.

How a run is cut into chunks, or saved and loaded again, cannot change a bit of it:
cohorts, batches and sketches are functions of the run's roots and the round's number.
The control flow of a private run reads released quantities only: parameters, what is
measured of them on test data, and the clock.
"""

import enum
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.engine.recorder import Recorder, Row, of_point
from fl_sketch.engine.round import Report, State

SECONDS = 1.0  # of a chunk, about
MOST = 4096  # rounds of a chunk


class Ask(enum.IntEnum):
    """A request to a run between two chunks; of several the largest counts."""

    NOTHING = 0
    SAVE = 1
    STOP = 2


class NotFinite(RuntimeError):
    """The loss is no longer finite."""


class Stopped(RuntimeError):
    """The run was asked to stop, after this `number` of rounds."""

    def __init__(self, number: int):
        """Takes the number of rounds done."""
        super().__init__(f"stopped after round {number}")
        self.number = number


class Compiled(NamedTuple):
    """The programs of a run, or of all points of a sweep.

    Attributes:
      advance: `(state, done, count) -> (state, reports)`, which uses up the state;
        leaves of reports are [rounds, ...], for points [points, rounds, ...].
      evaluate: `(state) -> {column: number}`, for points arrays [points].
      seconds: the time of compiling.
    """

    advance: Callable[[Any, int, int], tuple[Any, Report]]
    evaluate: Callable[[Any], dict[str, Any]]
    seconds: float = 0.0


class Watch(NamedTuple):
    """Callbacks of a run.

    Attributes:
      rows: gets the rows of an evaluation, one for each recorder, and the speed.
      ahead: gets the last round of the next chunk, before it is played.
      rounds: gets the number of rounds done, and the last training loss.
      look: gets the number of rounds done and the state after every evaluation.
      save: gets the number of rounds done and the state at every checkpoint.
      asked: returns whether to save, or to save and stop.
      agree: makes `(pace, asked)` the same in all processes of a run.
      lost: gets a line about each loss that is not finite; may raise.
    """

    rows: Callable[[list[Row], float], None] = lambda rows, speed: None
    ahead: Callable[[int], None] = lambda last: None
    rounds: Callable[[int, float], None] = lambda done, loss: None
    look: Callable[[int, State], None] = lambda done, state: None
    save: Callable[[int, State], None] = lambda done, state: None
    asked: Callable[[], Ask] = lambda: Ask.NOTHING
    agree: Callable[[int, Ask], tuple[int, Ask]] = lambda pace, asked: (pace, asked)
    lost: Callable[[str], None] = lambda line: None


def play(
    compiled: Compiled,
    state: Any,
    recorders: Sequence[Recorder],
    rounds: tuple[int, int],
    *,
    points: bool = False,
    save_every: int = 0,
    watch: Watch = Watch(),  # noqa: B008 - immutable
) -> Any:
    """Plays rounds, and returns the state after the last.

    Args:
      state: the state before the first of these rounds, which is used up.
      recorders: one for the run, or one for each point.
      rounds: the number of rounds that are done, and the last one.
      points: whether state and reports have a leading axis of points.
      save_every: rounds between saves; the last round is saved too. 0: no saves.

    Raises:
      Stopped: after saving, if the watch asks for it.
    """
    (done, last), every = rounds, recorders[0].every
    stops = (every, save_every) if save_every else (every,)
    pace, spent, since = 1, 0.0, done
    while done < last:
        stop = min(last, *((done // step + 1) * step for step in stops))
        count = min(pace, stop - done, MOST)
        watch.ahead(done + count)
        begin = time.perf_counter()
        state, reports = compiled.advance(state, done, count)
        reports = jax.device_get(reports)
        seconds = time.perf_counter() - begin
        loss = _record(recorders, reports, done, count, points, watch)
        done, spent = done + count, spent + seconds
        watch.rounds(done, loss)
        if done % every == 0 or done == last:
            speed = (done - since) / spent
            watch.rows(_rows(compiled, state, recorders, done, points, watch), speed)
            watch.look(done, state)
            spent, since = 0.0, done
        pace, asked = watch.agree(max(1, int(SECONDS * count / seconds)), watch.asked())
        if save_every and (asked or done % save_every == 0 or done == last):
            watch.save(done, state)
        if asked == Ask.STOP and done < last:
            raise Stopped(done)
    return state


def _record(recorders, reports, done: int, count: int, points: bool, watch) -> float:
    """Records the reports of a chunk; returns the last training loss."""
    loss = np.nan
    for place, recorder in enumerate(recorders):
        mine = of_point(reports, place) if points else reports
        for number in range(done, done + count):
            loss = recorder.record(number, of_point(mine, number - done))
            if recorder.diverged == number + 1:
                watch.lost(f"The training loss is {loss} in round {number + 1}")
    return loss


def _rows(compiled, state, recorders, done: int, points: bool, watch) -> list[Row]:
    """Returns a row of each recorder, with what is measured of its model."""
    results, rows = compiled.evaluate(state), []
    for place, recorder in enumerate(recorders):
        measured = {
            name: plain(value[place] if points else value)
            for name, value in results.items()
        }
        loss = measured.get("test_loss", 0.0)
        if isinstance(loss, int | float) and not np.isfinite(loss):
            recorder.lose(done, loss)
            watch.lost(f"The test loss is {loss} after round {done}")
        rows.append(recorder.row(done, measured))
        # The last row may be between two of a longer run, which then needs these.
        if done % recorder.every == 0:
            recorder.forget()
    return rows


def plain(value: Any) -> Any:
    """Returns the number of an array of one number, and anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
