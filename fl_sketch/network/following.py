"""Download by messages: a site takes the server's steps itself, from the means.

A site that follows has the server's whole state: parameters, moments and memory. It
begins a round with the means of the rounds since its last one. A new site gets the
first parameters and all means, or the whole state where that is shorter. So does one
that was away for long. `engine.prices.Prices.fetched` counts the same bytes.
"""

import hashlib
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from fl_sketch.core import files
from fl_sketch.core.protocols import Keys, Server
from fl_sketch.engine.round import initial_server
from fl_sketch.network import layout
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.frames import DIGEST, Frame, Kind
from fl_sketch.network.known import Counts, Heard

FILE = "followed"  # of a site: the server that it has, and of which round
WORD = 8  # bytes of a round's number in it
WHOLE, FIRST, SINCE = "whole", "first", "since"  # what a round begins with


class Formats:
    """The layouts of what sites need to follow a server.

    Attributes:
      whole: parameters, moments and memory.
      first: the parameters alone.
      always: what they read and cannot compute.
      message: all means of a round, and how its clients counted where that matters.
      rest: the same without what a client heard within the round.
      needed: for each leaf of the means, whether it was heard there.
    """

    whole: layout.Layout
    first: layout.Layout
    always: layout.Layout
    message: layout.Layout
    rest: layout.Layout
    needed: tuple[bool, ...]

    def __init__(self, talk: Conversation):
        """Takes the programs, of an algorithm without a downlink."""
        if talk.algorithm.downlink:
            msg = "Expected download=model with a downlink for sites elsewhere, got "
            raise ValueError(msg + "download=messages.")
        server, one = talk.server, jax.ShapeDtypeStruct((), np.float32)
        counted = [one, one] if talk.traffic.counts else []
        means = jax.tree.leaves([exchange.mean for exchange in talk.exchanges])
        self.needed = sum((exchange.needed for exchange in talk.exchanges), ())
        rest = [leaf for leaf, had in zip(means, self.needed, strict=True) if not had]
        self.whole = layout.of_leaves(_state(server))
        self.first = layout.of_leaves(jax.tree.leaves(server.params))
        self.always = layout.of_leaves(self.always_of(talk, server))
        self.message = layout.of_leaves([*means, *counted])
        self.rest = layout.of_leaves([*rest, *counted])

    def always_of(self, talk: Conversation, server: Server) -> list[Any]:
        """Returns the leaves of a server that sites get in every round."""
        read = jax.tree.leaves(talk.traffic.read.guard)
        pairs = zip(jax.tree.leaves(server.guard), read, strict=True)
        return [leaf for leaf, here in pairs if here]

    def messages_of(self, means: Sequence[Any], counts: Counts) -> tuple[bytes, bytes]:
        """Returns the message of a round, and the rest for who heard its means."""
        leaves = jax.tree.leaves(means)
        rest = [leaf for leaf, had in zip(leaves, self.needed, strict=True) if not had]
        same = len(self.message.leaves) > len(leaves)
        counted = [counts.denominator, counts.present] if same else []
        return self.message.pack([*leaves, *counted]), self.rest.pack([*rest, *counted])


def digest_of(state: bytes) -> str:
    """Returns the digest of a server's state."""
    return hashlib.blake2b(state, digest_size=DIGEST).hexdigest()


def _state(server: Server) -> list[Any]:
    return jax.tree.leaves((server.params, server.opt, server.memory))


def _with_state(server: Server, leaves: Sequence[Any]) -> Server:
    """Returns a server with other parameters, moments and memory."""
    parts = server.params, server.opt, server.memory
    params, opt, memory = jax.tree.unflatten(jax.tree.structure(parts), leaves)
    return server._replace(params=params, opt=opt, memory=memory)


class History:
    """A coordinator's side: what sites have, and the messages since then."""

    def __init__(self, talk: Conversation):
        """Takes the programs; nothing was sent so far."""
        self.formats, self._talk = Formats(talk), talk
        self._has: dict[int, tuple[int, bool]] = {}
        self._offers: dict[int, tuple[int, str]] = {}
        self._messages: dict[int, tuple[bytes, bytes]] = {}
        self._start: bytes | None = None

    def note(self, number: int, means: Sequence[Any], counts: Counts) -> None:
        """Keeps the message of a round, and as many before as are worth sending."""
        own = jax.device_get((means, counts))
        self._messages[number] = self.formats.messages_of(*own)
        while sum(len(one) for one, _ in self._messages.values()) > (
            self.formats.whole.size + self.formats.message.size
        ):
            del self._messages[min(self._messages)]

    def joined(self, client: int, has: int, digest: str) -> None:
        """Notes of which round a site has the server, and its digest; -1: of none.

        A site that another process of the coordinator told of rounds may have a server
        that differs from this one's, and then begins anew.
        """
        known = self._has.pop(client, None)
        if known and known[0] == has:
            self._has[client] = has, False
        self._offers[client] = has, digest

    def got(self, clients: Collection[int], number: int) -> None:
        """Notes that sites have the server of a round, which was released."""
        for client in clients:
            self._has[client] = number, False
            self._offers.pop(client, None)

    def heard(self, clients: Collection[int]) -> None:
        """Notes that sites heard all that they need of their newest round."""
        for client in clients if any(self.formats.needed) else ():
            if client in self._has:
                self._has[client] = self._has[client][0], True

    def begins(
        self, server: Server, number: int
    ) -> Callable[[int], tuple[dict[str, Any], bytes]]:
        """Returns `(client) -> notes, payload` with which a site begins a round."""
        own = jax.device_get(server)
        if number == 0 and self._start is None:
            self._start = self.formats.first.pack(jax.tree.leaves(own.params))
        always = self.formats.always.pack(self.formats.always_of(self._talk, own))
        state = self.formats.whole.pack(_state(own))
        here = number, digest_of(state)

        def begin(client: int) -> tuple[dict[str, Any], bytes]:
            has, heard = self._has.get(client, (-1, False))
            if self._offers.get(client) == here:
                has, heard = number, False
            sent = self._since(has, heard, number) if has >= 0 else None
            if sent is not None and len(sent) < len(state):
                return {"begin": SINCE, "since": has, "heard": heard}, always + sent
            sent = self._since(0, False, number) if has < 0 and self._start else None
            if sent is not None and len(self._start or b"") + len(sent) < len(state):
                return {"begin": FIRST}, always + (self._start or b"") + sent
            return {"begin": WHOLE}, always + state

        return begin

    def _since(self, first: int, heard: bool, number: int) -> bytes | None:
        """Returns the messages of rounds from the first on; None: not all are there."""
        if first > number or any(r not in self._messages for r in range(first, number)):
            return None
        parts = [self._messages[r][heard and r == first] for r in range(first, number)]
        return b"".join(parts)


def begins(
    history: History | None,
    talk: Conversation,
    server: Server,
    number: int,
    said: dict[str, Any],
) -> Callable[[int], Frame]:
    """Returns what makes the first frame of a round for a client, with these notes."""
    frame = Frame(Kind.MODEL, number, notes=said)
    if history:
        begins = history.begins(server, number)

        def begin(client: int) -> Frame:
            notes, payload = begins(client)
            return frame._replace(notes={**said, **notes}, payload=payload)

        return begin
    own = jax.device_get(talk.of_model(server))
    frame = frame._replace(payload=talk.model.pack(own))
    return lambda client: frame


class Follower:
    """A site's side: the server that it has, in memory and on its disk."""

    def __init__(self, talk: Conversation, folder: pathlib.Path):
        """Takes the programs and the folder, with the server of an earlier process."""
        self.formats, self._talk, self._path = Formats(talk), talk, folder / FILE
        self._heard: tuple[int, Heard] | None = None
        self._server: Server | None = None
        if self._path.exists():
            data = self._path.read_bytes()
            self._server = self._made(
                data[WORD:], int.from_bytes(data[:WORD], "little")
            )

    @property
    def number(self) -> int:
        """The round of which it has the server; -1: none."""
        return -1 if self._server is None else int(self._server.round)

    @property
    def digest(self) -> str:
        """The digest of the server."""
        if self._server is None:
            return ""
        return digest_of(self.formats.whole.pack(jax.device_get(_state(self._server))))

    @property
    def longest(self) -> int:
        """The bytes of the longest payload that a round begins with."""
        return self.formats.always.size + self.formats.whole.size

    def hear(self, number: int, heard: Heard) -> None:
        """Keeps the means that were received within a round."""
        self._heard = number, heard

    def begin(
        self, frame: Frame, keys: Callable[[int], Keys], counts: Counts
    ) -> Server:
        """Returns the server before a round, as its first frame says it.

        Args:
          keys: `(round) -> keys` of the round, of which the shared one is used.

        Raises:
          ValueError: in one line, for a frame that does not continue what is here.
        """
        always, rest = self.formats.always, frame.payload
        guard = always.unpack(rest[: always.size])
        rest = rest[always.size :]
        if self.number != frame.round or frame.notes.get("begin") == WHOLE:
            server, rest, heard = self._from(frame, rest)
            while int(server.round) < frame.round:
                server, rest = self._step(server, rest, keys, counts, heard)
                heard = False
            if rest:
                msg = f"Expected no more messages, got {len(rest)} bytes of them."
                raise ValueError(msg)
            self._server = server
            state = self.formats.whole.pack(jax.device_get(_state(server)))
            with files.replacing(self._path) as partial:
                partial.write_bytes(frame.round.to_bytes(WORD, "little") + state)
        assert self._server
        return self._with_always(self._server, guard)

    def _from(self, frame: Frame, data: bytes) -> tuple[Server, bytes, bool]:
        """Returns where the messages of a frame begin, and those that are left."""
        begin, first = frame.notes.get("begin"), self.formats.first.size
        if begin == WHOLE:
            return self._made(data, frame.round), b"", False
        if begin == FIRST:
            leaves = self.formats.first.unpack(data[:first])
            tree = jax.tree.structure(self._talk.server.params)
            params = jax.tree.unflatten(tree, leaves)
            server = initial_server(self._talk.algorithm, params)[0]
            return server, data[first:], False
        since, heard = int(frame.notes.get("since", -1)), bool(frame.notes.get("heard"))
        if begin != SINCE or self._server is None or self.number != since:
            msg = f"Expected to go on from round {self.number}, got round {since}."
            raise ValueError(msg)
        return self._server, data, heard

    def _step(self, server, data: bytes, keys, counts: Counts, heard: bool):
        """Returns the server after the next round, and the messages after that."""
        form = self.formats.rest if heard else self.formats.message
        number = int(server.round)
        received = form.unpack(data[: form.size])
        if self._talk.traffic.counts:
            *received, denominator, present = received
            counts = counts._replace(denominator=denominator, present=present)
        shapes, tree = jax.tree.flatten([one.mean for one in self._talk.exchanges])
        own = self._own(number) if heard else [None] * len(shapes)
        given = iter(received)
        leaves = [
            own[place] if heard and had else next(given)
            for place, had in enumerate(self.formats.needed)
        ]
        means = tuple(jax.tree.unflatten(tree, leaves))
        after = self._talk.serve(server, server.guard, keys(number), counts, means)
        return after, data[form.size :]

    def _own(self, number: int) -> list[Any]:
        """Returns the leaves of the means that were heard within a round."""
        if self._heard is None or self._heard[0] != number:
            msg = f"Expected to have heard the means of round {number}, got none."
            raise ValueError(msg)
        means, talk = self._heard[1].means, self._talk
        missing = [one.mean for one in talk.exchanges[len(means) :]]
        return [*jax.tree.leaves(means), *jax.tree.leaves(missing)]

    def _made(self, data: bytes, number: int) -> Server:
        """Returns the server of a whole state."""
        blank = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), self._talk.server)
        server = _with_state(blank, self.formats.whole.unpack(data))
        return server._replace(round=np.int32(number))

    def _with_always(self, server: Server, leaves: Sequence[Any]) -> Server:
        """Returns a server with what sites read and cannot compute."""
        given = iter(leaves)
        read = jax.tree.leaves(self._talk.traffic.read.guard)
        old, tree = jax.tree.flatten(server.guard)
        pairs = zip(old, read, strict=True)
        guard = [next(given) if here else leaf for leaf, here in pairs]
        return server._replace(guard=jax.tree.unflatten(tree, guard))
