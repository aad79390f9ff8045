"""The run itself: rounds in short calls, rows at evaluations, and checkpoints.

Everything that a run must know to go on is a `Progress`: one that was saved and
loaded again goes on exactly as if nothing had happened, since cohorts, batches and
sketches are functions of the seed and of the round's number.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch import engine
from fl_sketch.engine import ledger
from fl_sketch.experiment.build import Compiled, Experiment

Row = dict[str, Any]
CALL_SECONDS = 1.0  # about how long nobody looks at signals


class NotFinite(RuntimeError):
    """The loss or the model is no longer finite; says since when."""


class Stopped(RuntimeError):
    """The run was asked to stop, and has saved its progress."""

    def __init__(self, number: int):
        """Takes the number of rounds done."""
        super().__init__(f"stopped after round {number}")
        self.number = number


class Progress(NamedTuple):
    """All that a run carries from round to round."""

    state: engine.State
    ledger: ledger.Ledger
    losses: np.ndarray  # of the rounds since the last row; NaN: nobody took part


class Watch(NamedTuple):
    """Who is told of a run, and may stop it.

    Attributes:
      row: told of every evaluation.
      rounds: told how many rounds are done, and the last training loss.
      save: given what must be kept.
      stop: asked after every call whether to save and stop.
      agree: makes `(pace, stop)` the same in all processes of a run.
    """

    row: Callable[[Row], None] = lambda row: None
    rounds: Callable[[int, float], None] = lambda done, loss: None
    save: Callable[[int, Progress], None] = lambda done, progress: None
    stop: Callable[[], bool] = lambda: False
    agree: Callable[[int, bool], tuple[int, bool]] = lambda pace, stop: (pace, stop)


def begin(experiment: Experiment, eval_every: int) -> Progress:
    """Returns the progress of a run that has not begun."""
    losses = np.full(eval_every, np.nan, np.float32)
    return Progress(experiment.start(), ledger.empty(experiment.population), losses)


def train(
    experiment: Experiment,
    compiled: Compiled,
    progress: Progress,
    *,
    rounds: int,
    checkpoint_every: int,
    watch: Watch = Watch(),  # noqa: B008 - immutable
) -> Progress:
    """Runs an experiment from where it stands.

    Args:
      experiment: made by `build`.
      compiled: its programs.
      progress: used up by this call.
      rounds: how many, in all.
      checkpoint_every: how many rounds between saves; the last round is saved too.
      watch: of the run.

    Returns:
      The last progress.

    Raises:
      NotFinite: naming the first round whose training loss was not, or the round
        after which the test loss was not.
      Stopped: after saving, if the watch asks for it.
    """
    state, book, losses = progress
    eval_every = losses.size
    done = int(state.server.round)
    pace, spent, since = 1, 0.0, done
    while done < rounds:
        next_stop = min(_next(done, eval_every), _next(done, checkpoint_every), rounds)
        count = min(pace, next_stop - done)
        begin = time.perf_counter()
        state, reports = compiled.advance(state, count)
        reports = jax.device_get(reports)
        seconds = time.perf_counter() - begin
        spent += seconds
        for number in range(done, done + count):
            report = jax.tree.map(lambda leaf, i=number - done: leaf[i], reports)
            ledger.record(book, experiment.prices, number, report)
            losses[number % eval_every] = _loss(report, number)
        done += count
        watch.rounds(done, float(losses[(done - 1) % eval_every]))
        pace = max(1, min(eval_every, int(CALL_SECONDS * count / seconds)))
        pace, stopping = watch.agree(pace, watch.stop())
        if done % eval_every == 0 or done == rounds:
            row = _row(done, losses, compiled.evaluate(state), book)
            row["epsilon"] = experiment.promise and experiment.promise.epsilon(done)
            watch.row(row | {"rounds_per_second": (done - since) / spent})
            spent, since = 0.0, done
            losses[:] = np.nan
        if stopping or done % checkpoint_every == 0 or done == rounds:
            watch.save(done, Progress(state, book, losses))
        if stopping and done < rounds:
            raise Stopped(done)
    return Progress(state, book, losses)


def _next(done: int, every: int) -> int:
    return (done // every + 1) * every


def _loss(report: engine.Report, number: int) -> float:
    if not report.answered.any():
        return np.nan
    loss = report.diagnostics["loss"]
    if not np.isfinite(loss):
        msg = (
            f"The training loss is {loss} in round {number + 1}: "
            "a smaller client.rate or server.rate may help."
        )
        raise NotFinite(msg)
    return loss


def _row(done: int, losses: np.ndarray, found: dict[str, float], book) -> Row:
    if not np.isfinite(found["test_loss"]):
        msg = (
            f"The test loss is {found['test_loss']} after round {done}: "
            "a smaller server.rate may help."
        )
        raise NotFinite(msg)
    seen = losses[np.isfinite(losses)]
    return {
        "round": done,
        "train_loss": float(seen.mean()) if seen.size else float("nan"),
        **found,
        "bytes_up_total": int(book.up.sum()),
        "bytes_down_total": int(book.down.sum()),
    }
