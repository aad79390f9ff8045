"""A site: one client next to its own data, bytes in and bytes out.

A site answers every frame of the coordinator with one frame. It holds its examples, the
state of its client, and the secret that its randomness follows from. What leaves it are
the messages of the algorithm, and what its owner allows besides.

A frame that comes twice gets the same answer, and nothing is computed or spent again.
A round that comes again with another question gets noise of its own: the difference of
two messages with the same noise would have none.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core.keys import again, of_client, of_round
from fl_sketch.core.protocols import Keys, Roots, Server, Work
from fl_sketch.engine.clients import Client
from fl_sketch.engine.round import initial_server
from fl_sketch.network import frames, site_sums
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.following import Follower
from fl_sketch.network.frames import Frame, Kind
from fl_sketch.network.identities import Identity
from fl_sketch.network.known import Counts, Heard
from fl_sketch.network.refused import Refused
from fl_sketch.network.site_states import SiteStates
from fl_sketch.network.site_sums import Masked
from fl_sketch.network.terms import IDS
from fl_sketch.workdir import identity

TERMS = "terms"  # why a site that has just begun refuses: it does not know the run


class Part(NamedTuple):
    """A site's part in a run.

    Attributes:
      data: its examples on its device, as those of client 0 (`data.Resident`).
      roots: of its randomness; the public one is that of the run.
      number: the number of its client in the run.
      states: the states of its client, on its disk.
      admit: `(round, exchange, digest) -> bool`: counts the answer to a question, and
        returns whether it is the first question there; raises `Refused` where the
        answer would cost too much.
      basis: a digest of what else of the site an answer follows from.
      hello: what the coordinator is told of the site.
      tells: whether it is told what the client measured in its local steps.
      follows: whether the site takes the server's steps itself.
      sums: the least and the largest number of sites in a masked sum, and the site's
        identity in it.
    """

    conversation: Conversation
    data: Any
    roots: Roots
    number: int
    states: SiteStates
    admit: Callable[[int, int, bytes], bool] = lambda number, exchange, digest: True
    basis: bytes = b""
    hello: Mapping[str, Any] = {}
    tells: bool = False
    follows: bool = False
    sums: tuple[int, int, Identity | None] = (2, IDS, None)


class _Playing(NamedTuple):
    """The round that a site is in."""

    number: int
    server: Server
    client: Client
    work: Work
    keys: Keys
    counts: Counts
    asked: bytes
    heard: Heard = Heard()


class Site:
    """Answers frames."""

    def __init__(
        self,
        join: Callable[[Mapping[str, Any]], Part],
        say: Callable[[str], None] = print,
    ):
        """Takes what makes a part of the terms of a run.

        Args:
          join: `(terms) -> Part`; raises `Refused` for terms that the owner refuses.
          say: prints a line of the site's own log.
        """
        self._join, self._say = join, say
        self._part: Part | None = None
        self._playing: _Playing | None = None
        self._follower: Follower | None = None
        self._masked: Masked | None = None
        self._least, self._asked, self._answer = 0, b"", b""
        self._lock = threading.Lock()

    def receive(self, data: bytes) -> bytes:
        """Returns the answer to a frame, of which it takes one at a time."""
        with self._lock:
            return self._received(data)

    def _received(self, data: bytes) -> bytes:
        if data == self._asked:
            return self._answer
        number = exchange = 0
        try:
            if self._part is None and not frames.is_terms(data):
                msg = "Expected the terms of a run first, got a frame of a round."
                raise Refused(msg, TERMS)
            frame = frames.read(data, self._longest)
            number, exchange = frame.round, frame.exchange
            answer = self._answered(frame, data)
        except Refused as error:
            self._say(f"round {number}: refused: {error}")
            answer = self._refusal(number, exchange, str(error), error.code)
            return frames.write(answer)  # asked again, it may have another answer
        except Exception as error:  # whatever it is, the site waits for the next frame
            line = " ".join(f"{type(error).__name__}: {error}".split())
            self._say(f"round {number}: {line}")
            reason = "it met an error, which is in its own log"
            if isinstance(error, ValueError) and self._part is None:
                reason = "it could not join the run; why is in its own log"
            return frames.write(self._refusal(number, exchange, reason, ""))
        self._asked, self._answer = data, frames.write(answer)
        return self._answer

    @property
    def _longest(self) -> int:
        if self._part is None:
            return 0
        talk = self._part.conversation
        begins = self._follower.longest if self._follower else talk.model.size
        hidden = self._masked.longest if self._masked else 0
        return max(begins, hidden, *(one.down.size for one in talk.exchanges))

    def _refusal(self, number: int, exchange: int, reason: str, code: str) -> Frame:
        site = self._part.number if self._part else 0
        notes = {"reason": reason, "code": code}
        return Frame(Kind.REFUSED, number, exchange, site, notes=notes)

    def _answered(self, frame: Frame, data: bytes) -> Frame:
        if frame.kind == Kind.TERMS:
            return self._joined(frame)
        part = self._part
        assert part
        if frame.program != part.conversation.digest:
            msg = "Expected a frame of the same programs, got one of others."
            raise Refused(msg)
        if frame.site != part.number:
            msg = f"Expected a frame for site {part.number}, got one for {frame.site}."
            raise Refused(msg)
        answers = {
            Kind.MODEL: self._begun,
            Kind.MEAN: self._went_on,
            Kind.SUM: self._added,
            Kind.END: self._ended,
        }
        if frame.kind not in answers:
            msg = f"Expected a frame of a coordinator, got a {frame.kind.name}."
            raise Refused(msg)
        return answers[frame.kind](part, frame, data)

    def _joined(self, frame: Frame) -> Frame:
        """Takes the terms of a run, and goes to the round that they begin with."""
        self._part = self._playing = self._follower = self._masked = None
        part = self._join(frame.notes)
        states, opened = part.states, part.states.frames()
        states.go_back(frame.round)
        talk = part.conversation
        follower = Follower(talk, states.folder) if part.follows else None
        masked = Masked(states.folder, *part.sums) if talk.masked else None
        # All or nothing: without its masks a part would send messages in the clear.
        self._part, self._least = part, frame.round
        self._follower, self._masked = follower, masked
        playing = int(frame.notes.get("playing", -1))
        self._play_again(part, opened, frame.round, playing)
        digest = part.conversation.digest
        notes = {**part.hello, "state": states.newest, "versions": identity.versions()}
        notes["program"] = digest.hex()
        if self._follower:
            notes |= {"follows": self._follower.number, "server": self._follower.digest}
        return Frame(Kind.HELLO, frame.round, 0, part.number, digest, notes)

    def _play_again(self, part: Part, opened, done: int, playing: int) -> None:
        """Goes to where the site was in its open round, unless that is played anew."""
        number = frames.read(opened[0], self._longest).round if opened else -1
        try:
            for data in opened if number < done or number == playing else ():
                frame = frames.read(data, self._longest)
                if frame.kind == Kind.MODEL:
                    self._opened(part, frame, *self._known(part, frame, data))
                else:
                    self._heard(part, frame, data)
        except Refused as error:  # what it follows is not on its disk any more
            self._say(f"round {number}: cannot go on: {error}")
            self._playing = None
        if opened and self._playing is None:
            part.states.close()

    def _begun(self, part: Part, frame: Frame, data: bytes) -> Frame:
        """Begins a round: local work, and the first message."""
        if frame.round < self._least:
            msg = f"Expected round {self._least} or a later one, got {frame.round}."
            raise Refused(msg)
        if self._playing and part.conversation.stateful:
            number = self._playing.number
            if number != frame.round:
                msg = f"Expected the end of round {number}, got round {frame.round}."
                raise Refused(msg, "end")
        server, client, asked = self._known(part, frame, data)
        first = part.admit(frame.round, 0, asked)
        self._least = frame.round
        if part.conversation.remembers:
            part.states.close()
            part.states.note(data)
        self._opened(part, frame, server, client, asked)
        return self._message(part, frame, first)

    def _known(self, part: Part, frame: Frame, data: bytes):
        """Returns what a round begins with, and a digest of what it asks."""
        server, question = self._server(part, frame, data)
        client, asked = self._client(part, server), part.basis
        if part.conversation.algorithm.mechanism:  # only noise needs it
            for leaf in jax.tree.leaves(client):
                asked = _digest(asked, np.asarray(leaf).tobytes())
        return server, client, _digest(asked, question)

    def _server(self, part: Part, frame: Frame, data: bytes) -> tuple[Server, bytes]:
        """Returns the server of a first frame, and what the site is asked with it."""
        talk = part.conversation
        if self._follower is None:
            server = talk.with_model(talk.model.unpack(frame.payload), frame.round)
            return server, _question(frame, data)

        def keys(number: int) -> Keys:
            return of_client(of_round(part.roots, number), 0)

        try:
            server = self._follower.begin(frame, keys, _counts(frame))
        except ValueError as error:  # so it joins anew, and gets the whole state
            raise Refused(str(error), TERMS) from None
        notes = {"counts": frame.notes["counts"]}
        state = self._follower.digest.encode() + talk.model.pack(talk.of_model(server))
        return server, frames.write(frame._replace(notes=notes, payload=state))

    def _opened(self, part: Part, frame: Frame, server, client, asked: bytes) -> None:
        talk, number = part.conversation, frame.round
        keys = of_client(of_round(part.roots, number), part.number)
        work = talk.work(server, client, part.data, keys)
        counts = _counts(frame)
        self._playing = _Playing(number, server, client, work, keys, counts, asked)

    def _client(self, part: Part, server: Server) -> Client:
        """Returns the state of the client; the first is made of the model it gets."""
        talk = part.conversation
        kept = part.states.load(talk.client) if talk.stateful else None
        if kept is None:
            return initial_server(talk.algorithm, server.params)[1]
        return kept

    def _went_on(self, part: Part, frame: Frame, data: bytes) -> Frame:
        """Goes on in a round, after the mean of an exchange."""
        self._require_playing(frame)
        self._heard(part, frame, data)
        if part.conversation.remembers:
            part.states.note(data)
        assert self._playing
        exchange, asked = len(self._playing.heard.means), self._playing.asked
        first = part.admit(frame.round, exchange, asked)
        return self._message(part, frame, first)

    def _added(self, part: Part, frame: Frame, data: bytes) -> Frame:
        """Goes on in the secure sum of an exchange."""
        del data
        playing, hidden = self._require_playing(frame), self._masked
        if hidden is None or frame.exchange != len(playing.heard.means):
            msg = (
                f"Expected no sum of exchange {frame.exchange} now, got a stage of it."
            )
            raise Refused(msg, "unknown")
        stage, sent = hidden.go_on(frame.payload)
        kind = Kind.MESSAGE if stage == "numbers" else Kind.PART
        at = (frame.round, frame.exchange, part.number, part.conversation.digest)
        return Frame(kind, *at, payload=sent)

    def _heard(self, part: Part, frame: Frame, data: bytes) -> None:
        playing = self._require_playing(frame)
        if frame.exchange != len(playing.heard.means):
            expected = len(playing.heard.means)
            msg = f"Expected the mean of exchange {expected}, got {frame.exchange}."
            raise Refused(msg)
        heard = part.conversation.heard_of(frame.exchange, frame.payload, playing.heard)
        asked = _digest(playing.asked, _question(frame, data))
        self._playing = playing._replace(heard=heard, asked=asked)
        if self._follower:
            self._follower.hear(frame.round, heard)

    def _ended(self, part: Part, frame: Frame, data: bytes) -> Frame:
        """Ends a round: the client keeps its new state if its messages counted."""
        answer = Frame(Kind.DONE, frame.round, 0, part.number, part.conversation.digest)
        if frame.round < self._least and self._playing is None:
            return answer  # it has ended before
        playing, states = self._require_playing(frame), part.states
        if frame.notes.get("counted"):
            self._heard(part, frame, data)
            playing = self._playing
            assert playing
            state = part.conversation.finish(
                playing.server,
                playing.client,
                playing.work,
                playing.keys,
                _counts(frame),
                playing.heard,
            )
            back = [int(one) for one in frame.notes.get("back", ())]
            states.save(frame.round + 1, jax.device_get(state), back)
        states.close()
        self._playing, self._least = None, frame.round + 1
        return answer

    def _require_playing(self, frame: Frame) -> _Playing:
        if self._playing is None or self._playing.number != frame.round:
            got = "none" if self._playing is None else f"round {self._playing.number}"
            msg = f"Expected to be in round {frame.round}, got {got}."
            raise Refused(msg, "unknown")
        return self._playing

    def _message(self, part: Part, frame: Frame, first: bool) -> Frame:
        """Returns the next message of the round, or what its secure sum begins with.

        Args:
          first: whether this is the first question here; another gets other noise.
        """
        talk, playing = part.conversation, self._playing
        assert playing
        exchange, own = len(playing.heard.means), playing.keys.own
        which, codes = talk.send(
            exchange,
            playing.server,
            playing.client,
            playing.work,
            playing.keys,
            playing.counts,
            playing.heard,
            own if first else again(own, playing.asked),
        )
        which, at = int(which), (playing.number, exchange, part.number, talk.digest)
        arrays = [np.asarray(one) for one in codes[which]]
        if self._masked:
            clients = int(frame.notes["sum"][0])
            terms = site_sums.terms_of(talk, playing.number, exchange, clients)
            # Without noise of its own, two questions over other sites would show it.
            guard = talk.algorithm.mechanism
            anew = not first and guard and guard.smallest
            asked = f".{playing.asked.hex()}" if anew else ""
            keys = self._masked.begin(terms, part.number, arrays[0], asked)
            return Frame(Kind.PART, *at, payload=keys)
        if not all(np.isfinite(one).all() for one in arrays if one.dtype.kind == "f"):
            msg = "Expected an update of finite numbers, got one that is not."
            raise Refused(msg)
        payload = talk.exchanges[exchange].up[which].pack(arrays)
        notes = {}
        if part.tells and not exchange:
            seen = playing.work.diagnostics
            notes["diagnostics"] = {name: float(value) for name, value in seen.items()}
        return Frame(Kind.MESSAGE, *at, notes, payload)


def _digest(before: bytes, more: bytes) -> bytes:
    return hashlib.sha256(before + more).digest()


def _question(frame: Frame, data: bytes) -> bytes:
    """Returns what a frame asks, which a sum that is tried again asks once."""
    if "sum" not in frame.notes:
        return data
    notes = {key: value for key, value in frame.notes.items() if key != "sum"}
    return frames.write(frame._replace(notes=notes))


def _counts(frame: Frame) -> Counts:
    """Returns how clients count, as the coordinator says it."""
    return Counts(*(np.float32(one) for one in frame.notes["counts"]))
