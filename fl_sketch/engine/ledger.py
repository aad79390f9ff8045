"""The ledger: the exact bytes that every client sent and received.

Up: what a client sent in all exchanges of a round, as channels say it: indices, scales
and seeds included. Down: what came back between the exchanges, and what a client had
to fetch before it could begin. It runs on the host, in 64-bit integers, on the
reports of rounds.

>>> ledger = empty(3)
>>> one = SimulatorOnly(np.array([2, 0]), np.array([True, False]), 40, 8, {})
>>> record(ledger, Prices(whole=100, missed=None), 0, one)
Traffic(up=40, down=208, answered=1)
>>> ledger.up.tolist(), ledger.down.tolist()
([0, 0, 40], [100, 0, 108])
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch import trees, validate
from fl_sketch.engine.round import SimulatorOnly
from fl_sketch.keys import round_keys
from fl_sketch.protocols import Algorithm, Link, Server, Tree
from fl_sketch.transforms.error_feedback import ErrorFeedbackState
from fl_sketch.wire import FLOAT_BITS

FLOAT_BYTES = FLOAT_BITS // 8
DOWNLOADS = ("model", "messages")


class Prices(NamedTuple):
    """What a client fetches before its work, in bytes."""

    whole: int  # the model; with `missed`, also what is needed to go on from it
    missed: int | None  # for every round since its last one; None: always the whole
    early: int = 0  # and so much more for each of the first rounds
    warmup: int = 0  # of which there are so many
    hears_means: bool = False  # whether what is heard in a round are its means


class Ledger(NamedTuple):
    """Totals of every client; each array has shape (population,)."""

    up: np.ndarray  # int64
    down: np.ndarray  # int64
    last: np.ndarray  # int32, the round in which it last had the model; -1: never
    heard: np.ndarray  # int64, bytes of that round's means that it heard at once
    asked: np.ndarray  # int32, how often it had the model
    answered: np.ndarray  # int32, how often it sent something


class Traffic(NamedTuple):
    """All bytes of one round."""

    up: int
    down: int
    answered: int


def empty(population: int) -> Ledger:
    """Returns the ledger before the first round."""
    validate.at_least_one(population=population)
    up, down, heard = np.zeros((3, population), np.int64)
    asked, answered = np.zeros((2, population), np.int32)
    never = np.full(population, -1, np.int32)
    return Ledger(up, down, never, heard, asked, answered)


def record(
    ledger: Ledger, prices: Prices, number: int, report: SimulatorOnly
) -> Traffic:
    """Writes one round into the ledger and returns what it cost.

    Args:
      ledger: written in place.
      prices: of fetching the model.
      number: of the round, from zero.
      report: what a simulator sees of this round, as numpy arrays.
    """
    places = report.clients >= 0
    asked, answered = report.clients[places], report.answered[places]
    up = np.where(answered, np.int64(report.bytes_up), 0)
    heard = np.where(answered, np.int64(report.bytes_heard), 0)
    down = heard + _fetched(ledger.last[asked], ledger.heard[asked], prices, number)
    np.add.at(ledger.up, asked, up)
    np.add.at(ledger.down, asked, down)
    np.add.at(ledger.asked, asked, 1)
    np.add.at(ledger.answered, asked[answered], 1)
    ledger.last[asked] = number
    ledger.heard[asked] = heard if prices.hears_means else 0
    return Traffic(int(up.sum()), int(down.sum()), int(answered.sum()))


def _fetched(last, heard, prices: Prices, number: int) -> np.ndarray:
    whole = np.full(last.shape, prices.whole, np.int64)
    if prices.missed is None:
        return whole
    # Who had the model of round m lacks the steps of rounds m to number - 1.
    last = last.astype(np.int64)
    catching_up = prices.missed * (number - last) - heard
    first_rounds = np.minimum(number, prices.warmup) - np.minimum(last, prices.warmup)
    catching_up += prices.early * first_rounds
    return np.where(last < 0, whole, np.clip(catching_up, 0, whole))


class Talk(NamedTuple):
    """What one client says and hears in a round, found from shapes alone."""

    sent: tuple[int, ...]  # numbers in each message, as the mean is taken of them;
    # one entry for each exchange, and so for each release of a mechanism
    bits_up: int | None  # None: it depends on the round
    stateful: bool  # whether clients or the channel keep something of each client


def overheard(algorithm: Algorithm, params: Tree, batches) -> Talk:
    """Returns what a client with such batches would say; nothing is computed."""
    talk = []

    def client(params, batches):
        sent = []

        def mean(message):
            if algorithm.mechanism:  # it may refuse such an exchange
                state, number = algorithm.mechanism.init(), len(sent)
                told = algorithm.mechanism.told(number, message, work.diagnostics)
                algorithm.mechanism.bound(state, number, told, keys)
            sent.append(sum(leaf.size for leaf in jax.tree.leaves(message)))
            return message

        memory = algorithm.uplink.init(params)
        state = algorithm.local.init(params)
        server = Server(params, algorithm.server.init(params), memory.server, 0)
        keys = round_keys(jax.random.key(0), 0, 0)
        work = algorithm.local.run(server, state, batches, keys)
        delivery, _ = algorithm.uplink.mean(work.update, memory, keys, Link(mean))
        stateful = bool(jax.tree.leaves((state, memory.client)))
        bits = delivery.bits + (algorithm.mechanism.bits if algorithm.mechanism else 0)
        bits = None if isinstance(bits, jax.Array) else int(bits)
        talk.append(Talk(tuple(sent), bits, stateful))

    jax.eval_shape(client, params, batches)
    return talk[0]


def prices(algorithm: Algorithm, params: Tree, talk: Talk, *, download: str) -> Prices:
    """Returns the prices of a way to hand the model to clients.

    Args:
      algorithm: as run.
      params: of the model.
      talk: of this algorithm, from `overheard`.
      download: "model": every client of a round fetches the model. "messages": the
        server sends the round's mean, and every client takes the server's step
        itself, its optimizer's state included; who was away fetches the means it
        missed, or everything where that is less (and the first time). Where the
        server compresses the mean before it steps, that is what it sends.
    """
    validate.one_of(DOWNLOADS, download=download)
    model, heard = FLOAT_BYTES * trees.size(params), algorithm.local.hears_mean
    carried = jax.eval_shape(lambda: _carried(algorithm, params, download))
    whole = model + FLOAT_BYTES * sum(leaf.size for leaf in jax.tree.leaves(carried))
    if download == "model":
        return Prices(whole, None, hears_means=heard)
    means = FLOAT_BYTES * sum(talk.sent)
    if algorithm.down_bits is None:
        return Prices(whole, means, hears_means=heard)
    short = -(-algorithm.down_bits(trees.size(params)) // 8)
    return Prices(whole, short, means - short, algorithm.warmup, heard)


def _carried(algorithm: Algorithm, params: Tree, download: str) -> Any:
    """Returns what a client that comes for the first time needs beside the model."""
    memory = algorithm.uplink.init(params).server
    read = memory if algorithm.local.reads_memory else algorithm.uplink.fetched(memory)
    if download == "model":
        return read
    opt = algorithm.server.init(params)
    if algorithm.down_bits is None:
        return memory, opt
    # What the server's own compressor left stays with the server.
    return read, jax.tree.map(
        lambda state: state.inner if _keeps_errors(state) else state,
        opt,
        is_leaf=_keeps_errors,
    )


def _keeps_errors(state: Any) -> bool:
    return isinstance(state, ErrorFeedbackState)
