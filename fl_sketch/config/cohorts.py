"""From the cohort section of a config to samplers of cohorts, and simulated times."""

import csv
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config.parse import section
from fl_sketch.core import files, validate
from fl_sketch.core.keys import cohort_key
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.engine import availability
from fl_sketch.engine.availability import Clock
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic

FASTEST, SLOWEST = 1e-6, 1e9  # seconds of a client
WIDEST = 10.0  # deviation of a logarithm of seconds
TIMES = 0x7135  # the seed of the times that are drawn for clients


class Cohorts(NamedTuple):
    """Who takes part in a round, and how long that takes.

    Attributes:
      sampler: the sampler of cohorts, in which all clients have equal weights.
      weighted: `(starts) -> Sampler` with the weights that a config asks for. Client i
        has the examples from starts[i] to starts[i + 1]; in a sweep over seeds the
        first of them is not zero.
      clock: `(roots, number) -> seconds` of a round; None: rounds take no time.
      absences: whether clients may be unavailable, late, or not answer.
    """

    sampler: Sampler
    weighted: Callable[[jax.Array], Sampler]
    clock: Callable[[Key | Roots, Any], jax.Array] | None
    absences: bool


def cohorts_of(config: ConfigDict, traffic: Traffic) -> Cohorts:
    """Returns the cohorts of a config, whose clients have this `traffic`.

    Raises:
      FileNotFoundError, ValueError: in one line, for a wrong cohort section.
    """
    cohort, population = config.cohort, config.data.clients
    samplers = {
        "everyone": lambda: engine.everyone(population),
        "fixed": lambda: engine.fixed_size(population, cohort.size),
        "poisson": lambda: engine.poisson(population, cohort.size),
        "replacement": lambda: engine.with_replacement(population, cohort.size),
    }
    with section("cohort"):
        _require_fitting(cohort, traffic, config.algorithm)
        validate.one_of(tuple(samplers), sampling=cohort.sampling)
        asked = samplers[cohort.sampling]()
        if cohort.available:
            asked = _present(cohort, population, config.rounds)
        if cohort.dropout:
            asked = engine.with_dropout(asked, cohort.dropout)
        times = _clock(cohort, population, (traffic.bits_up or 0) / 8)
    sampler, lasting = availability.in_time(asked, times), None
    if cohort.times:
        lasting = availability.lasting(asked, times)

    def clock(roots, number):
        assert lasting
        return lasting(cohort_key(roots, number), number)

    def weighted(starts):
        if cohort.weighting == "equal":
            return sampler
        fixed = cohort.sampling == "poisson"
        return engine.weighted(
            sampler,
            lambda ids: (starts[ids + 1] - starts[ids]).astype(jnp.float32),
            average=(starts[-1] - starts[0]) / population if fixed else None,
        )

    absences = bool(cohort.available or cohort.times or cohort.dropout)
    return Cohorts(sampler, weighted, clock if lasting else None, absences)


def _require_fitting(cohort: ConfigDict, traffic: Traffic, algorithm: str) -> None:
    """Raises for a cohort that an algorithm with this traffic cannot have."""
    if traffic.counts and cohort.weighting != "equal":  # it has a mean over all clients
        msg = (
            f"Expected weighting='equal' with algorithm={algorithm}, got "
            f"weighting={cohort.weighting!r}."
        )
        raise ValueError(msg)
    if cohort.sending and traffic.bits_up is None:
        msg = (
            "Expected an algorithm with messages of a fixed length with sending > 0, "
            f"got algorithm={algorithm}."
        )
        raise ValueError(msg)
    if traffic.stateful and cohort.sampling == "replacement":
        msg = (
            f"Expected each client at most once per round, as clients of {algorithm} "
            "keep a state, got sampling='replacement'."
        )
        raise ValueError(msg)


def _present(cohort: ConfigDict, population: int, last: int) -> Sampler:
    """Returns the sampler of clients that are available in `last` rounds."""
    if cohort.sampling not in ("fixed", "everyone"):
        msg = "Expected sampling=fixed or everyone with available, got "
        raise ValueError(msg + f"sampling={cohort.sampling!r}.")
    path = cohort.available
    table = _table(path, ("client", "first", "last"), "available")
    for number, row in enumerate(table, 1):
        if not all(abs(value) < 2**31 and value == int(value) for value in row):
            cells = ", ".join(f"{value:g}" for value in row)
            msg = f"Expected integers below 2^31 in available={path}, got {cells} "
            raise ValueError(msg + f"in row {number}.")
    if not table:
        msg = f"Expected available={path} to have rows, got none."
        raise ValueError(msg)
    triples = [(int(a), int(b), int(c)) for a, b, c in table]
    rounds = cohort.period or max(last for _, _, last in triples)
    size = population if cohort.sampling == "everyone" else cohort.size
    sampler = availability.present(
        population, size, first_and_last=triples, rounds=rounds
    )
    if not cohort.period and rounds < last:
        msg = (
            f"Expected available={path} to cover all {last} rounds, or period > 0 to "
            f"repeat it, got {rounds} rounds."
        )
        raise ValueError(msg)
    return sampler


def _clock(cohort: ConfigDict, population: int, sent: float) -> Clock:
    names = ("jitter", "sending", "deadline", "period")
    validate.in_range(0, math.inf, **{name: cohort[name] for name in names})
    validate.in_range(0, WIDEST, jitter=cohort.jitter)
    if not cohort.times:
        for name in names[:3]:
            if cohort[name]:
                msg = f"Expected times to be set with {name} > 0, got times=''."
                raise ValueError(msg)
        return Clock(np.zeros(1, np.float32))
    seconds, sending = _times(cohort.times, population), cohort.sending * sent / 1e6
    first = float(seconds.min()) + sending
    if not cohort.jitter and 0 < cohort.deadline < first:
        msg = (
            f"Expected deadline >= {first:g} (seconds of the fastest client), got "
            f"deadline={cohort.deadline}: no client would answer."
        )
        raise ValueError(msg)
    return Clock(seconds, cohort.jitter, sending, cohort.deadline)


def _times(text: str, population: int) -> np.ndarray:
    """Returns the median seconds of each client: drawn, or given by a file.

    What is drawn is the same for all seeds, since it describes the clients.
    """
    drawn = re.fullmatch(r"lognormal\(([^,]+),([^,]+)\)", text.replace(" ", ""))
    if drawn:
        try:
            median, spread = map(float, drawn.groups())
        except ValueError:
            median = spread = -1.0
        if FASTEST <= median <= SLOWEST and 0 <= spread <= WIDEST:
            normal = np.random.default_rng(TIMES).standard_normal(population)
            return (median * np.exp(spread * normal)).astype(np.float32)
    if not text.endswith(".csv"):
        msg = (
            "Expected times to be lognormal(MEDIAN, SIGMA) with seconds from "
            f"{FASTEST:g} to {SLOWEST:g} and SIGMA up to {WIDEST:g}, or a csv file, "
            f"got times={text!r}."
        )
        raise ValueError(msg)
    seconds = np.full(population, np.nan, np.float32)
    table = _table(text, ("client", "seconds"), "times")
    for number, (client, value) in enumerate(table, 1):
        if client not in range(population) or not FASTEST <= value <= SLOWEST:
            msg = (
                f"Expected clients from 0 to {population - 1} and seconds from "
                f"{FASTEST:g} to {SLOWEST:g} in {text}, got {client:g}, {value:g} in "
                f"row {number}."
            )
            raise ValueError(msg)
        if not np.isnan(seconds[int(client)]):
            msg = f"Expected every client once in {text}, got {client:g} again in row "
            raise ValueError(msg + f"{number}.")
        seconds[int(client)] = value
    if np.isnan(seconds).any():
        missing = int(np.flatnonzero(np.isnan(seconds))[0])
        msg = (
            f"Expected seconds for all {population} clients in times={text}, got none "
            f"for client {missing}."
        )
        raise ValueError(msg)
    return seconds


def _table(path: str, columns: Sequence[str], name: str) -> list[tuple[float, ...]]:
    """Returns the rows of numbers of a csv file with these columns."""
    if not os.path.isfile(path):
        got = f"{name}={path!r}{validate.absent(path)}"
        msg = f"Expected {name} to name a csv file, got {got}."
        raise FileNotFoundError(msg)
    expected = f"Expected columns {', '.join(columns)} of numbers in {name}={path}, got"
    try:
        rows = files.read_rows(path)
    except (ValueError, csv.Error) as error:  # a UnicodeDecodeError is a ValueError
        msg = f"{expected} a file that is no csv in UTF-8: {error}."
        raise ValueError(msg) from None
    missing = [column for column in columns if rows and column not in rows[0]]
    if missing:
        msg = f"{expected} no {missing[0]} but {', '.join(map(str, rows[0]))}."
        raise ValueError(msg)
    table = []
    for number, row in enumerate(rows, 1):
        cells = [row[column] for column in columns]
        try:
            table.append(tuple(map(float, cells)))
        except (TypeError, ValueError):
            msg = f"{expected} {', '.join(map(str, cells))} in row {number}."
            raise ValueError(msg) from None
    return table
