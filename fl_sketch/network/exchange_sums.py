"""The sum of an exchange at the coordinator: of messages, or under masks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fl_sketch.core.protocols import Message
from fl_sketch.engine.clients import zeros
from fl_sketch.network import formats, identities
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.formats import STAGES
from fl_sketch.network.frames import Frame
from fl_sketch.network.round_report import Asked, told_in
from fl_sketch.network.secure_sum import Server
from fl_sketch.network.terms import Terms

Say = Callable[[str], None]


class Came(NamedTuple):
    """What came of an exchange.

    Attributes:
      clients: those whose messages came.
      total: the sum of what the mechanism or the mean takes; None: too few came.
      seen: what sites whose messages came tell of their local work, by client.
      needed: if there is no sum: how many would have been enough for a secure sum.
    """

    clients: tuple[int, ...]
    total: Any
    seen: dict[int, dict[str, float]] = {}
    needed: int = 0


class Parties(NamedTuple):
    """Who takes part in a secure sum.

    Attributes:
      clients: those who were asked for keys.
      keys: the public keys of each that sent them.
      ask: `(stage, requests) -> what clients send`.
      smallest: the least number of messages that are added up.
    """

    clients: tuple[int, ...]
    keys: Mapping[int, bytes]
    ask: Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]
    smallest: int

    @property
    def signed(self) -> bool:
        """Whether clients signed their keys, so that none may drop out after shares."""
        size = identities.SIGNATURE_BYTES
        return any(data[-size:] != identities.UNSIGNED for data in self.keys.values())


def of_messages(
    talk: Conversation,
    at: tuple[int, int],
    answers: Mapping[int, Frame],
    asked: Asked,
    known: tuple,
    say: Say,
) -> Came:
    """Returns the weighted sum of messages in the clear.

    Args:
      at: the exchange, and which of its codes messages have.
      answers: the frames of clients.
      asked: the clients of the round, with their weights.
      known: the server, the keys, the counts, and the earlier means and replies.
      say: prints a line about a site.
    """
    server, keys, _, heard = known
    messages, total = _arrays(talk, at, answers, say), None
    known = (server, keys, asked.among(messages), heard)
    weights = dict(zip(asked.ids.tolist(), asked.weights, strict=True))
    clients = tuple(one for one in weights if one in messages)
    for client in clients:  # in one order, whoever answered late
        one = talk.summand(*at, *known, messages[client])
        total = zeros(one) if total is None else total
        total = talk.add(total, weights[client], one)
    seen = {one: told_in(answers[one].notes, talk.measures) for one in clients}
    return Came(clients, total, seen)


def under_masks(
    talk: Conversation,
    exchange: int,
    terms: Terms,
    parties: Parties,
    known: tuple,
    say: Say,
) -> Came:
    """Returns the sum of masked messages.

    A sum that fails after answers were asked for cannot be tried again. Nothing is in
    it then: it is that of a cohort in which no client answers.

    Args:
      known: the server, the keys, the counts, and the earlier means and replies.
      say: prints a line.
    """
    server, came, alive = Server(terms, parties.clients), parties.keys, ()
    shared = 0
    for stage, later in zip(STAGES, (*STAGES[1:], ""), strict=True):
        for client, data in came.items():
            try:
                server.receive(client, _whole(stage, terms, client, data))
            except ValueError as error:
                say(f"site {client}: {error}")
        try:
            requests = server.close()
        except ValueError as error:
            say(f"no secure sum: {error}")
            if stage == "answer":
                return Came(
                    (), zeros(talk.summands[exchange]), dict.fromkeys(alive, {})
                )
            return Came(tuple(came), None, needed=terms.threshold)
        if stage == "shares":
            shared = len(requests)
        if stage == "numbers":
            alive = tuple(one for one in parties.clients if one in requests)
            if parties.signed and len(alive) < shared:
                say(f"no secure sum: {len(alive)} of {shared} sites sent numbers")
                return Came(alive, None, needed=shared)
            if len(alive) < parties.smallest:
                return Came(alive, None)
        came = parties.ask(later, requests) if later else {}
    count = np.float32(len(alive))
    total = talk.of_sum(*known, server.total, count)
    return Came(alive, total, dict.fromkeys(alive, {}))


def _whole(stage: str, terms: Terms, client: int, data: bytes) -> bytes:
    """Returns a message of a sum; masked numbers came without its header."""
    if stage != "numbers":
        return data
    return formats.write(formats.NUMBERS, terms, client, data)


def longest(terms: Terms) -> int:
    """Returns the bytes of the longest message of a client in a sum."""
    return max(one.up for one in formats.traffic(terms).values())


def _arrays(
    talk: Conversation, at: tuple[int, int], answers: Mapping[int, Frame], say: Say
) -> dict[int, list[Message]]:
    """Returns the arrays of messages of finite numbers."""
    exchange, which = at
    layout, found = talk.exchanges[exchange].up[which], {}
    for client, answer in answers.items():
        try:
            arrays = layout.unpack(answer.payload)
        except ValueError as error:
            say(f"site {client}: {error}")
            continue
        floats = (one for one in arrays if one.dtype.kind not in "iu")
        if all(np.isfinite(one.astype(np.float32)).all() for one in floats):
            found[client] = arrays
        else:
            say(f"site {client}: Expected finite numbers, got others.")
    return found
