"""The run itself: rounds in short calls, rows at evaluations, and checkpoints.

Everything that a run must know to go on is a `Progress`. One that was saved and loaded
again goes on exactly as if nothing had happened, since cohorts, batches and sketches
are functions of the run's roots and of the round's number.

The control flow of a private run reads released quantities only: parameters, what is
measured of them on test data, and the clock. What clients measured is written down for
the simulator and decides nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config import cohorts
from fl_sketch.core.protocols import Tree
from fl_sketch.engine import ledger
from fl_sketch.engine.chunks import Ask, Call, in_calls
from fl_sketch.run.build import Compiled, Experiment
from fl_sketch.workdir import rows

Row = dict[str, Any]
MESSY = (
    "asked",
    "answered",
    "simulated_seconds",
)  # where clients are absent
Clock = Callable[[int], float]


class NotFinite(RuntimeError):
    """The loss or the model is no longer finite; says since when."""


class Stopped(RuntimeError):
    """The run was asked to stop, and has saved its progress."""

    def __init__(self, number: int):
        """Takes the `number` of rounds done."""
        super().__init__(f"stopped after round {number}")
        self.number = number


class Progress(NamedTuple):
    """All that a run carries from round to round.

    `state` and `ledger` are after its last round. `losses` are of the rounds since the
    last row, NaN where nobody took part; `noised` is the same of what was released
    beside the model. `noise_multiplier` is z, with which the run began; 0: no noise.
    """

    state: engine.State
    ledger: ledger.Ledger
    losses: np.ndarray
    noised: dict[str, np.ndarray]
    noise_multiplier: np.ndarray | np.float64


class Watch(NamedTuple):
    """Who is told of a run, and may stop it.

    Attributes:
      row: what is told of every evaluation.
      ahead: what is told, before they are played, with which round the next will end.
      rounds: what is told how many rounds are done, and the last training loss.
      look: what is given the model after every evaluation.
      save: what is given all that must be kept.
      asked: what is asked after every call whether to save, or to save and stop.
      agree: what makes `(pace, asked)` the same in all processes of a run.
    """

    row: Callable[[Row], None] = lambda row: None
    ahead: Callable[[int], None] = lambda last: None
    rounds: Callable[[int, float], None] = lambda done, loss: None
    look: Callable[[int, Tree], None] = lambda done, params: None
    save: Callable[[int, Progress], None] = lambda done, progress: None
    asked: Callable[[], Ask] = lambda: Ask.NOTHING
    agree: Callable[[int, Ask], tuple[int, Ask]] = lambda pace, asked: (pace, asked)


def begin(experiment: Experiment, eval_every: int) -> Progress:
    """Returns the progress of an `experiment` that has not begun.

    It has room for the losses of `eval_every` rounds, those between two rows.
    """
    guarantee = experiment.guarantee
    empty = np.full(eval_every, np.nan, np.float32)
    return Progress(
        experiment.start(),
        ledger.empty(experiment.population),
        empty.copy(),
        {name: empty.copy() for name in experiment.noised},
        np.float64(guarantee.noise_multiplier if guarantee else 0),
    )


def train(
    experiment: Experiment,
    compiled: Compiled,
    progress: Progress,
    *,
    checkpoint_every: int,
    rounds: int | None = None,
    watch: Watch = Watch(),  # noqa: B008 - immutable
) -> Progress:
    """Runs an experiment from where it stands, never beyond its budget of privacy.

    Args:
      experiment: the experiment that `build` made.
      compiled: its programs.
      progress: the progress of the run so far; used up by this call.
      checkpoint_every: the rounds from one save to the next; the last is saved too.
      rounds: the round to end with; None, or beyond the experiment's last: that one.
      watch: the watch that is told of the run.

    Returns:
      The last progress.

    Raises:
      NotFinite: naming the first round whose training loss was not, unless the run is
        private, or the round after which the test loss was not.
      Stopped: after saving, if the watch asks for it.
    """
    state, book, losses, noised, z = progress
    last = min(rounds or experiment.rounds, experiment.rounds)
    eval_every, begun = losses.size, int(state.server.round)
    spent, since = 0.0, begun

    def agree(call: Call, pace: int) -> tuple[int, Ask]:
        _note(experiment, progress, call)
        watch.rounds(call.done, float(losses[(call.done - 1) % eval_every]))
        return watch.agree(pace, watch.asked())

    for call in in_calls(
        lambda state, done, count: compiled.advance(state, count),
        state,
        (begun, last),
        every=(eval_every, checkpoint_every),
        ahead=watch.ahead,
        agree=agree,
    ):
        state, done, now = call.state, call.done, progress._replace(state=call.state)
        spent += call.seconds
        if done % eval_every == 0 or done == last:
            row = _row(experiment, done, now, compiled.evaluate(state))
            watch.row(row | {"rounds_per_second": (done - since) / spent})
            watch.look(done, state.server.params)
            spent, since = 0.0, done
            # The last row may be between two of a longer run, which then needs these.
            for kept in (losses, *noised.values()) if done % eval_every == 0 else ():
                kept[:] = np.nan
        if call.asked or done % checkpoint_every == 0 or done == last:
            watch.save(done, now)
        if call.asked == Ask.STOP and done < last:
            raise Stopped(done)
    return Progress(state, book, losses, noised, z)


def _note(experiment: Experiment, progress: Progress, call: Call) -> None:
    """Notes what the rounds of a call reported."""
    for number in range(call.first, call.done):
        report = jax.tree.map(lambda leaf, i=number - call.first: leaf[i], call.reports)
        seen, place = report.simulator_only, number % progress.losses.size
        ledger.record(progress.ledger, experiment.prices, number, seen)
        progress.losses[place] = _loss(seen)
        if not experiment.private:
            _require_finite(experiment, seen, number)
        for name, kept in progress.noised.items():
            kept[place] = report.released[name]


def _loss(seen: engine.SimulatorOnly) -> jax.typing.ArrayLike:
    """Returns the training loss of a round; NaN if nobody took part."""
    return seen.diagnostics["loss"] if seen.answered.any() else np.nan


def _require_finite(experiment: Experiment, seen, number: int) -> None:
    loss = seen.diagnostics["loss"]
    if seen.answered.any() and not np.isfinite(loss):
        msg = f"The training loss is {loss} in round {number + 1}: {experiment.advice}."
        raise NotFinite(msg)


def _row(experiment: Experiment, done: int, now: Progress, found) -> Row:
    if not np.isfinite(found["test_loss"]):
        msg = (
            f"The test loss is {found['test_loss']} after round {done}: "
            f"{experiment.advice}."
        )
        raise NotFinite(msg)
    guarantee, book = experiment.guarantee, now.ledger
    row = {
        "round": done,
        "train_loss": mean_of_finite(now.losses),
        **found,
        # In the same order also after a checkpoint, whose names are sorted.
        **{name: mean_of_finite(now.noised[name]) for name in experiment.noised},
        "bytes_up_total": int(book.up.sum()),
        "bytes_down_total": int(book.down.sum()),
        **messy(experiment.config, done, book, experiment.clock),
        "epsilon": guarantee and guarantee.epsilon(done),
    }
    if guarantee and experiment.private:
        row |= {"delta": guarantee.delta, "randomness": guarantee.randomness}
    return rows.marked(row, experiment.private)


def messy(
    config: ConfigDict, done: int, book: ledger.Ledger, clock: Clock | None
) -> Row:
    """Returns who was asked and answered, and how long it took, where that matters.

    Args:
      config: the config of the run.
      done: the number of rounds done.
      book: what was noted of clients in these.
      clock: the simulated seconds after so many rounds; None: nobody asked for time.
    """
    if not cohorts.messy(config):
        return {}
    row: Row = {"asked": int(book.asked.sum()), "answered": int(book.answered.sum())}
    return row | ({"simulated_seconds": clock(done)} if clock else {})


def mean_of_finite(values: np.ndarray) -> float:
    """Returns the mean of those `values` that are finite; NaN if none is."""
    seen = values[np.isfinite(values)]
    return float(seen.mean()) if seen.size else float("nan")
