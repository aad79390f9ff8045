"""Plays an experiment: rounds in chunks of about a second, rows, and checkpoints.

How a run is cut into chunks, or saved and loaded again, cannot change a bit of it:
cohorts, batches and sketches are functions of the run's roots and the round's number.
The control flow of a private run reads released quantities only: parameters, what is
measured of them on test data, and the clock.

A folder, a terminal, a tracker are callbacks.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core import chacha, free_memory, secret, shown, validate
from fl_sketch.core.constants import trees_of
from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Key, Roots, Server, Tree
from fl_sketch.engine import multiprocess, programs, rounds
from fl_sketch.engine.clients import Client
from fl_sketch.engine.costs import Traffic
from fl_sketch.engine.experiment import MOST, Experiment
from fl_sketch.engine.ledger import Ledger, empty
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.recorder import Recorder, Row, of_point
from fl_sketch.engine.round import Report, State
from fl_sketch.engine.rounds import Advance, Seal
from fl_sketch.privacy.guarantee import RANDOMNESS

SECONDS = 1.0  # of a chunk, about
SPEED = "rounds_per_second"  # a column in which equal runs differ


class NotFinite(RuntimeError):
    """The loss is no longer finite."""


class Stopped(RuntimeError):
    """The run was asked to stop, after this `number` of rounds."""

    def __init__(self, number: int):
        """Takes the number of rounds done."""
        super().__init__(f"stopped after round {number}")
        self.number = number


class Progress(NamedTuple):
    """A run between two rounds, or several that one program plays.

    Attributes:
      state: the state; of several with a leading axis.
      recorders: the record of each.
      rows: all rows so far.
      lineage: with a secret, digests of how it began and of its programs.
    """

    state: State
    recorders: Sequence[Recorder]
    rows: list[Row]
    lineage: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        """The number of rounds done."""
        return int(np.ravel(self.state.server.round)[0])


class RunState(NamedTuple):
    """What another run continues from.

    Attributes:
      clients: the state of each client, along a leading axis of the population.
      ledger: bytes of every client since the first round.
      public: words of the public root.
      terms: the plan and the noise by which its rounds are accounted for; None: it is
        not private.
      lineage: with a secret key, digests of how it began, and of its programs.
      digest: with a secret key, that of the state, by which a change of it is noticed.
    """

    server: Server
    clients: Client
    ledger: Ledger
    prices: Prices
    public: np.ndarray
    terms: Any = None
    lineage: tuple[str, ...] = ()
    digest: str = ""

    def __repr__(self) -> str:
        """Returns how many rounds and clients there were."""
        done, population = int(self.server.round), len(self.ledger.up)
        return f"RunState({done} rounds, {population} clients)"


class Result(NamedTuple):
    """The result of a run.

    Attributes:
      state: what `simulate(state=...)` continues from.
      history: a row for every `every` rounds: means of the clients' diagnostics in
        these rounds, what was measured of the model, all bytes since the first round,
        and epsilon.
      seconds: the time of compiling.
      speed: rounds a second before the last row.
    """

    state: RunState
    history: list[Row]
    traffic: Traffic
    seconds: float = 0.0
    speed: float = 0.0

    def __repr__(self) -> str:
        """Returns how long the run is, its model, and the columns of its history."""
        count = len(self.history)
        columns = ", ".join(self.history[-1]) if count else "none"
        return (
            f"Result({int(self.state.server.round)} rounds, params="
            f"{shown.short(self.params)}, history of {count} rows: {columns})"
        )

    @property
    def params(self) -> Tree:
        """The model after the last round."""
        return self.state.server.params

    @property
    def prices(self) -> Prices:
        """The bytes that a client receives."""
        return self.state.prices

    def column(self, name: str) -> list[Any]:
        """Returns a column of the history, as "bytes_up_total"."""
        for row in self.history:
            if name not in row:
                msg = f"Expected a column of {', '.join(row)}, got {name!r}."
                raise ValueError(msg + validate.nearest(name, [*row]))
        return [row[name] for row in self.history]


class Callback:
    """What a run tells, and asks; each method does nothing here.

    Of the progress that a callback is given it may keep nothing but copies.
    """

    def on_plan(self, experiment: Experiment, roots: Roots) -> Roots:
        """Returns the roots of the run, which may be those that it had before."""
        del experiment
        return roots

    def on_start(self, progress: Progress) -> Progress:
        """Returns where the run continues from: this beginning, or later."""
        return progress

    def on_program(self, name: str) -> None:
        """Gets the name of the program, from which the noise key is derived."""

    def on_compiled(self, progress: Progress) -> None:
        """Is called before the first round."""

    def before_chunk(self, last: int) -> None:
        """Gets the last round of the next chunk, before any of it is played."""

    def on_chunk(self, done: int, loss: float) -> None:
        """Gets the number of rounds done, and the last training loss."""

    def on_rows(self, rows: Sequence[Row], progress: Progress) -> None:
        """Gets the rows of an evaluation, one for each run."""
        for row in rows:
            self.on_row(row, progress)

    def on_row(self, row: Row, progress: Progress) -> None:
        """Gets a row."""

    def on_checkpoint(self, progress: Progress) -> None:
        """Gets what is to be saved."""

    def stop_requested(self) -> bool:
        """Returns whether the run should save and stop, between two chunks."""
        return False


def run(
    experiment: Experiment,
    *,
    key: Key | Roots,
    callbacks: Sequence[Callback] = (),
    compiled: Callable[..., Advance] = rounds.compile_rounds,
) -> Result:
    """Plays an experiment to its end.

    Args:
      key: the root of all randomness, or its roots. With a secret one, what protects is
        a function of the secret and of all that the rounds compute.
      compiled: `(experiment, state, roots, seal) -> advance`, of rounds that are played
        elsewhere.

    Raises:
      NotFinite: if it diverges and has advice for that.
      Stopped: after saving, if a callback asks for it.
    """
    roots = roots_of(key)
    for one in callbacks:
        roots = one.on_plan(experiment, roots)
    begin = time.perf_counter()
    progress = initial(experiment, roots)
    for one in callbacks:
        progress = one.on_start(progress)
    lineage, seal = [*progress.lineage], None
    if lineage:
        constants, clients = trees_of(experiment.constants), tuple(experiment.clients)
        whole = constants, clients, dict(experiment.hyperparameters)
        data = programs.digest_of_arrays(whole)
        seal = _sealing(roots, lineage, data, callbacks)
    advance = compiled(experiment, progress.state, roots, seal)
    free_memory.give_back()
    seconds = time.perf_counter() - begin
    for one in callbacks:
        one.on_compiled(progress)

    def measured(state: State) -> list[Mapping[str, Any]]:
        return [experiment.evaluate(experiment.hyperparameters, state.server.params)]

    progress = play(
        progress._replace(lineage=tuple(lineage)),
        advance,
        measured,
        last=experiment.last,
        save_every=experiment.save_every if callbacks else 0,
        callbacks=callbacks,
        advice=experiment.advice,
    )
    return result_of(experiment, roots, progress, seconds)


def initial(experiment: Experiment, roots: Roots) -> Progress:
    """Returns the beginning of a run, on its devices."""
    key = secret.placed(roots, experiment.everywhere).public
    state, lineage = rounds.starting(experiment)(key), ()
    guarantee = experiment.guarantee
    simulated = bool(guarantee and guarantee.randomness == RANDOMNESS["seed"])
    if chacha.is_secret(roots) and not simulated:
        lineage = (programs.digest_of_arrays(state),)
    return Progress(state, [recorder(experiment)], [], lineage)


def recorder(experiment: Experiment) -> Recorder:
    """Returns the record of a run that has not begun."""
    book = empty(experiment.cohort.population)
    promise, absences = experiment.guarantee, experiment.cohort.dropout
    return Recorder(experiment.every, experiment.prices, book, promise, absences)


def _sealing(roots: Roots, lineage: list[str], data: str, callbacks) -> Seal:
    """Returns `(fingerprint) -> roots` of a run with this `lineage`.

    Other data, parameters or programs before these rounds mean other sums, which must
    not have the same noise. Rounds that continue with the same program and `data` have
    the same roots, so that a run in parts is the run.
    """
    own = secret.of_roots(roots)

    def seal(fingerprint: str) -> Roots:
        # Other hosts may have another processor: all seal by the first one's program.
        own_name = f"{data} {fingerprint}".encode()
        played = multiprocess.from_first(own_name).decode()
        if lineage[-1] != played:
            lineage.append(played)
        name = " ".join(lineage)
        for one in callbacks:
            one.on_program(name)
        drawn = chacha.key_of(own.sealed(name).reveal())
        return roots._replace(secret=drawn)

    return seal


def result_of(
    experiment: Experiment, roots: Roots, progress: Progress, seconds: float = 0.0
) -> Result:
    """Returns the result of a run that is alone."""
    (recorder,), (server, clients) = progress.recorders, progress.state
    public = np.asarray(jax.random.key_data(roots.public))
    facts = experiment.prices, public, terms_of(experiment), progress.lineage
    digest = programs.digest_of_arrays((server, clients)) if progress.lineage else ""
    standing = RunState(server, clients, recorder.ledger, *facts, digest)
    history = [{k: row[k] for k in row if k != SPEED} for row in progress.rows]
    speed = float(progress.rows[-1][SPEED])
    return Result(standing, history, experiment.traffic, seconds, speed)


def terms_of(experiment: Experiment) -> Any:
    """Returns the plan and the noise, which all rounds of a run share."""
    guarantee = experiment.guarantee
    if guarantee is None:
        return None
    return guarantee.plan._replace(steps=0), guarantee.noise_multiplier


def play(
    progress: Progress,
    advance: Callable[[Any, int, int], tuple[Any, Report]],
    evaluate: Callable[[Any], Sequence[Mapping[str, Any]]],
    *,
    last: int,
    save_every: int = 0,
    callbacks: Sequence[Callback] = (),
    points: bool = False,
    advice: str = "",
) -> Progress:
    """Plays rounds up to the last one; the only loop.

    Args:
      advance: `(state, done, count) -> (state, reports)`, which uses up the state.
        Leaves of reports are [rounds, ...], of several runs [runs, rounds, ...].
      evaluate: `(state) -> columns` of each run.
      save_every: rounds between checkpoints; the last round has one too. 0: none.
      points: whether state and reports have a leading axis of runs.
      advice: what to do about a loss that is not finite, which then ends the run.
    """
    state, recorders, done = progress.state, progress.recorders, progress.done
    every, pace, spent, since = recorders[0].every, 1, 0.0, done
    stops = (every, save_every) if save_every else (every,)

    def lost(line: str) -> None:
        if advice:
            msg = f"{line}: {advice}."
            raise NotFinite(msg)

    while done < last:
        stop = min(last, *((done // step + 1) * step for step in stops))
        count = min(pace, stop - done, MOST)
        for one in callbacks:
            one.before_chunk(done + count)
        begin, loss = time.perf_counter(), np.nan
        state, reports = advance(state, done, count)
        reports = jax.device_get(reports)
        seconds = time.perf_counter() - begin
        for place, recorder in enumerate(recorders):
            own = of_point(reports, place) if points else reports
            for number in range(done, done + count):
                loss = recorder.record(number, of_point(own, number - done))
                if recorder.diverged == number + 1:
                    lost(f"The training loss is {loss} in round {number + 1}")
        done, spent = done + count, spent + seconds
        progress = progress._replace(state=state)
        for one in callbacks:
            one.on_chunk(done, loss)
        if done % every == 0 or done == last:
            made = []
            for recorder, columns in zip(recorders, evaluate(state), strict=True):
                measured = {name: plain(value) for name, value in columns.items()}
                loss = measured.get("test_loss", 0.0)
                if isinstance(loss, int | float) and not np.isfinite(loss):
                    recorder.lose(done, loss)
                    lost(f"The test loss is {loss} after round {done}")
                row = recorder.row(done, measured) | {SPEED: (done - since) / spent}
                made.append(row)
                # The last row may be between two of a longer run, which needs these.
                if done % every == 0:
                    recorder.forget()
            progress.rows.extend(made)
            for one in callbacks:
                one.on_rows([dict(row) for row in made], progress)
            spent, since = 0.0, done
        pace = max(1, int(SECONDS * count / seconds))
        stop = any(one.stop_requested() for one in callbacks)
        pace, stop = multiprocess.agree(pace, stop)
        if save_every and (stop or done % save_every == 0 or done == last):
            for one in callbacks:
                one.on_checkpoint(progress)
        if stop and done < last:
            raise Stopped(done)
    return progress


def plain(value: Any) -> Any:
    """Returns the number of an array of one number, and anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
