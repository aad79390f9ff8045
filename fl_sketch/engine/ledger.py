"""The ledger: the exact bytes that every client sent and received.

Up: all messages of a client, with indices, scales and seeds. Down: what the server sent
between the exchanges, and what the client fetched before its work. The ledger is kept
on the host, in 64-bit integers, from the reports of rounds.

>>> ledger = empty(3)
>>> one = SimulatorOnly(np.array([2, 0]), np.array([True, False]), 40, 8, {})
>>> record(ledger, Prices(params=100), 0, one)
Bytes(up=40, down=208, answered=1)
>>> ledger.up.tolist(), ledger.down.tolist()
([0, 0, 40], [100, 0, 108])
"""

from typing import NamedTuple

import numpy as np

from fl_sketch.core import shown, validate
from fl_sketch.core.wire import byte_count
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.round import SimulatorOnly


class Ledger(NamedTuple):
    """Totals of every client; each array has shape [population].

    Attributes:
      up: bytes sent, int64.
      down: bytes received, int64.
      last: the round in which it last had the model, int32; -1: never.
      received: bytes of that round's means that it received during it, int64.
      asked: the number of rounds in which it received the model, int32.
      answered: the number of rounds in which it sent something, int32.
    """

    up: np.ndarray
    down: np.ndarray
    last: np.ndarray
    received: np.ndarray
    asked: np.ndarray
    answered: np.ndarray

    __repr__ = shown.fields


class Bytes(NamedTuple):
    """All bytes of one round, and how many clients answered."""

    up: int
    down: int
    answered: int


def empty(population: int) -> Ledger:
    """Returns the ledger before the first round."""
    validate.at_least_one(population=population)
    up, down, received = np.zeros((3, population), np.int64)
    asked, answered = np.zeros((2, population), np.int32)
    never = np.full(population, -1, np.int32)
    return Ledger(up, down, never, received, asked, answered)


def record(ledger: Ledger, prices: Prices, number: int, report: SimulatorOnly) -> Bytes:
    """Writes round `number`, from zero, into the ledger; returns what it cost.

    The report has numpy arrays.
    """
    places = report.clients >= 0
    asked = np.asarray(report.clients)[places]
    answered = report.answered[places]
    up = np.where(answered, byte_count(report.bytes_up), 0)
    received = np.where(answered, prices.downloaded(byte_count(report.bytes_reply)), 0)
    down = received + prices.fetched(ledger.last[asked], ledger.received[asked], number)
    down += np.where(_first_visits(ledger, asked), prices.once, 0)
    np.add.at(ledger.up, asked, up)
    np.add.at(ledger.down, asked, down)
    np.add.at(ledger.asked, asked, 1)
    np.add.at(ledger.answered, asked[answered], 1)
    ledger.last[asked] = number
    ledger.received[asked] = received if prices.received else 0
    return Bytes(int(up.sum()), int(down.sum()), int(answered.sum()))


def _first_visits(ledger: Ledger, asked: np.ndarray) -> np.ndarray:
    """Returns which places have clients that were never asked before, each once."""
    first = np.zeros(asked.shape, bool)
    first[np.unique(asked, return_index=True)[1]] = True
    return first & (ledger.asked[asked] == 0)
