"""From the cohort section of a config to who takes part in which round, and when."""

import csv
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

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
from fl_sketch.engine.cohort import Sampler

FASTEST, SLOWEST = 1e-6, 1e9  # seconds of a client
WIDEST = 10.0  # deviation of a logarithm of seconds
TIMES = 0x7135  # a seed: of what clients' times are drawn by


def sampler_of(config: ConfigDict, sent: float = 0.0) -> Sampler:
    """Returns the sampler of cohorts that a config names, all clients counting alike.

    Args:
      config: the config; its sections `cohort` and `data` say who comes, of how many.
      sent: the bytes that a client sends in a round.

    Raises:
      FileNotFoundError, ValueError: in one line, for what is no way to sample.
    """
    with section("cohort"):
        return availability.in_time(_asked(config), _clock(config, sent))


def clock_of(
    config: ConfigDict, sent: float = 0.0
) -> Callable[[Key | Roots, Any], jax.Array] | None:
    """Returns `(roots, number) -> seconds` of a round; None: nobody asked for time.

    Args:
      config: the config, checked.
      sent: the bytes that a client sends in a round.
    """
    if not config.cohort.times:
        return None
    with section("cohort"):
        sampler, clock = _asked(config), _clock(config, sent)
    lasting = availability.lasting(sampler, clock)
    return lambda roots, number: lasting(cohort_key(roots, number), number)


def may_be_absent(config: ConfigDict) -> bool:
    """Returns whether clients may be away, be late or not answer."""
    own = config.cohort
    return bool(own.available or own.times or own.dropout)


def _asked(config: ConfigDict) -> Sampler:
    """Returns the sampler of those who are asked, and may answer in time or not."""
    population, size = config.data.clients, config.cohort.size
    samplers = {
        "everyone": lambda: engine.everyone(population),
        "fixed": lambda: engine.fixed_size(population, size),
        "poisson": lambda: engine.poisson(population, size),
        "replacement": lambda: engine.with_replacement(population, size),
    }
    validate.one_of(tuple(samplers), sampling=config.cohort.sampling)
    validate.one_of(("equal", "examples"), weighting=config.cohort.weighting)
    sampler = samplers[config.cohort.sampling]()
    if config.cohort.available:
        sampler = _present(config, population)
    if config.cohort.dropout:
        return engine.with_dropout(sampler, config.cohort.dropout)
    return sampler


def _present(config: ConfigDict, population: int) -> Sampler:
    own = config.cohort
    if own.sampling not in ("fixed", "everyone"):
        msg = "Expected sampling=fixed or everyone with available, got "
        raise ValueError(msg + f"sampling={own.sampling!r}.")
    table = _table(own.available, ("client", "first", "last"), "available")
    size = population if own.sampling == "everyone" else own.size
    for number, row in enumerate(table, 1):
        if not all(abs(value) < 2**31 and value == int(value) for value in row):
            found = ", ".join(f"{value:g}" for value in row)
            msg = (
                f"Expected whole numbers of 31 bits in available={own.available}, got "
            )
            raise ValueError(msg + f"{found} in row {number}.")
    if not table:
        msg = f"Expected somebody to be there, got available={own.available} of no row."
        raise ValueError(msg)
    whole = [(int(a), int(b), int(c)) for a, b, c in table]
    rounds = own.period or max(last for _, _, last in whole)
    found = availability.present(population, size, first_and_last=whole, rounds=rounds)
    if not own.period and rounds < config.rounds:
        msg = (
            f"Expected available={own.available} to say who is there in all "
            f"{config.rounds} rounds, or period > 0, after which it repeats, got "
            f"{rounds} rounds."
        )
        raise ValueError(msg)
    return found


def _clock(config: ConfigDict, sent: float) -> availability.Clock:
    own = config.cohort
    names = ("jitter", "sending", "deadline", "period")
    validate.in_range(0, math.inf, **{name: own[name] for name in names})
    validate.in_range(0, WIDEST, jitter=own.jitter)
    if not own.times:
        for name in ("jitter", "sending", "deadline"):
            if own[name]:
                msg = f"Expected times of clients with {name} > 0, got times=''."
                raise ValueError(msg)
        return availability.Clock(np.zeros(1, np.float32))
    seconds, sending = _times(own.times, config.data.clients), own.sending * sent / 1e6
    first = float(seconds.min()) + sending
    if not own.jitter and 0 < own.deadline < first:
        msg = (
            f"Expected deadline >= {first:g}, the seconds of the fastest client, or "
            f"nobody ever answers, got deadline={own.deadline}."
        )
        raise ValueError(msg)
    return availability.Clock(seconds, own.jitter, sending, own.deadline)


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
            random = np.random.default_rng(TIMES)
            normal = random.standard_normal(population)
            return (median * np.exp(spread * normal)).astype(np.float32)
    if not text.endswith(".csv"):
        msg = (
            "Expected times to be lognormal(MEDIAN, SIGMA) with seconds from "
            f"{FASTEST:g} to {SLOWEST:g} and SIGMA up to {WIDEST:g}, or a csv file, "
            f"got times={text!r}."
        )
        raise ValueError(msg)
    table = _table(text, ("client", "seconds"), "times")
    seconds = np.full(population, np.nan, np.float32)
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
        lacks = int(np.flatnonzero(np.isnan(seconds))[0])
        msg = (
            f"Expected seconds of all {population} clients in times={text}, got none "
            f"of client {lacks}."
        )
        raise ValueError(msg)
    return seconds


def _table(path: str, columns: Sequence[str], name: str) -> list[tuple[float, ...]]:
    """Returns the rows of numbers of a csv file with these columns."""
    if not os.path.isfile(path):
        msg = f"Expected {name} to name a csv file, got {name}={path!r}."
        raise FileNotFoundError(msg)
    expected = f"Expected columns {', '.join(columns)} of numbers in {name}={path}, got"
    try:
        rows = files.read_rows(path)
    except (ValueError, csv.Error) as error:  # of text in another coding, too
        msg = f"{expected} no csv file of UTF-8: {error}."
        raise ValueError(msg) from None
    lacks = [column for column in columns if rows and column not in rows[0]]
    if lacks:
        msg = f"{expected} no {lacks[0]} but {', '.join(map(str, rows[0]))}."
        raise ValueError(msg)
    table = []
    for number, row in enumerate(rows, 1):
        try:
            table.append(tuple(float(row[column]) for column in columns))
        except (TypeError, ValueError):
            cells = ", ".join(str(row[column]) for column in columns)
            msg = f"{expected} {cells} in row {number}."
            raise ValueError(msg) from None
    return table


def check_weighting(config: ConfigDict, counts: bool) -> None:
    """Raises for weights where a server keeps a mean over all clients, absent too.

    Args:
      config: the config.
      counts: whether it does, as `engine.traffic` finds it.

    Raises:
      ValueError: in one line.
    """
    if counts and config.cohort.weighting != "equal":
        msg = (
            "config.cohort: Expected weighting='equal' with "
            f"algorithm={config.algorithm}, got weighting={config.cohort.weighting!r}."
        )
        raise ValueError(msg)


def weighted_sampler_of(config: ConfigDict, sampler, starts: jax.Array):
    """Returns the sampler with the weights that the config asks for.

    Args:
      config: the config; its `cohort.weighting` is "equal" or "examples".
      sampler: the sampler of cohorts, all clients counting alike.
      starts: int32 [clients + 1]. Client i has the examples from starts[i] to
        starts[i + 1]; in a sweep over seeds the first of them is not zero.
    """
    if config.cohort.weighting == "equal":
        return sampler
    fixed = config.cohort.sampling == "poisson"
    return engine.weighted(
        sampler,
        lambda ids: (starts[ids + 1] - starts[ids]).astype(jnp.float32),
        average=(starts[-1] - starts[0]) / config.data.clients if fixed else None,
    )
