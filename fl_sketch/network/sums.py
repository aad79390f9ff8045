"""A secure sum as one function: in the clear, or with all its parties in one process.

Both forms have the same total, to the bit.
"""

import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fl_sketch.core import validate
from fl_sketch.network import formats, packing
from fl_sketch.network.formats import STAGES, Traffic
from fl_sketch.network.secure_client import Client
from fl_sketch.network.secure_sum import Server
from fl_sketch.network.terms import Terms, terms_of

NONE: Mapping[int, str] = types.MappingProxyType({})  # drops out


class Summed(NamedTuple):
    """A sum and what it cost.

    Attributes:
      total: the sum modulo 2^bits, uint32 [length].
      bytes_up: the bytes that all clients sent.
      bytes_down: the bytes that all clients received.
    """

    total: np.ndarray
    bytes_up: int
    bytes_down: int


class SecureSum(NamedTuple):
    """A way to sum messages of which the server sees only the sum.

    Attributes:
      sum: `(messages, *, round, dropped) -> Summed`. Messages are unsigned integers
        below 2^bits, [length], by client; `dropped` has the stage in which a client
        drops out, one of `STAGES`. The message of one that does in "answer" counts.
      traffic: `(clients) -> {stage: Traffic}`, the bytes of one client in a cohort of
        so many, of which none drops out.
    """

    sum: Callable[..., Summed]
    traffic: Callable[[int], dict[str, Traffic]]


def clear(*, length: int, bits: int) -> SecureSum:
    """Returns the plain sum, for simulation: it has no masks and costs no keys.

    Args:
      bits: the number B; sums are modulo 2^B.
    """
    size = packing.size(length, bits)

    def plain(messages, *, round, dropped=NONE) -> Summed:
        del round
        _check(messages, dropped)
        came = [
            message
            for client, message in messages.items()
            if dropped.get(client, "answer") == "answer"
        ]
        total = np.zeros(length, np.uint32)
        for message in came:
            packing.require(message, length, bits)
            total += message.astype(np.uint32)
        return Summed(total & np.uint32(2**bits - 1), size * len(came), 0)

    return SecureSum(plain, lambda clients: {"numbers": Traffic(size, 0)})


def masked(
    *, length: int, bits: int, colluding: float = 0.2, dropping: float = 0.2
) -> SecureSum:
    """Returns the sum under masks, with the usual terms of `terms_of`.

    Args:
      bits: the number B; sums are modulo 2^B.
      colluding: the fraction of the cohort that may collude with the server.
      dropping: the fraction of the cohort that may drop out.
    """

    def terms(clients: int, round: int = 0) -> Terms:
        return terms_of(
            round=round,
            clients=clients,
            length=length,
            bits=bits,
            colluding=colluding,
            dropping=dropping,
        )

    def hidden(messages, *, round, dropped=NONE) -> Summed:
        return simulate(terms(len(messages), round), messages, dropped)

    return SecureSum(hidden, lambda clients: formats.traffic(terms(clients)))


def simulate(
    terms: Terms, messages: Mapping[int, np.ndarray], dropped: Mapping[int, str]
) -> Summed:
    """Returns the masked sum of a round whose parties all live in this process.

    Raises:
      ValueError: in one line, for wrong messages, or where too few clients stay.
    """
    _check(messages, dropped)
    server = Server(terms, messages)
    clients = {client: Client(terms, client) for client in messages}
    requests = dict.fromkeys(messages, b"")
    up = down = 0
    for stage in STAGES:
        for number, request in requests.items():
            if dropped.get(number) != stage:
                reply = _reply(clients[number], stage, request, messages[number])
                server.receive(number, reply)
                up += len(reply)
        requests = server.close()
        down += sum(map(len, requests.values()))
    return Summed(server.total, up, down)


def _reply(client: Client, stage: str, request: bytes, message: np.ndarray) -> bytes:
    if stage == "keys":
        return client.keys()
    if stage == "numbers":
        return client.numbers(request, message)
    return getattr(client, stage)(request)


def _check(messages: Mapping[int, np.ndarray], dropped: Mapping[int, str]) -> None:
    for client, stage in dropped.items():
        validate.one_of(STAGES, **{f"dropped[{client}]": stage})
        if client not in messages:
            msg = f"Expected dropped to have clients of the cohort, got {client}."
            raise ValueError(msg)
