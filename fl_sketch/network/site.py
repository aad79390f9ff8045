"""A site: one client next to its own data, bytes in and bytes out.

A site answers every message of the coordinator with one of its own. It holds its
examples, the state of its client and its budget. What leaves it are the messages of the
algorithm, and what its owner allows besides.

An answer is stored with its question, and the same question gets it again. Any other
question is another release: it is counted before it is answered, and its noise is drawn
anew from the operating system, so that none is ever used twice. What a site must know
of its open round is on its disk before it answers, so that a site which was killed and
started again continues in the same place.
"""

import hashlib
import json
import pathlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core.keys import again, round_keys
from fl_sketch.core.protocols import Keys, Roots, Work
from fl_sketch.engine.clients import Client
from fl_sketch.engine.round import initial_server
from fl_sketch.network import messages, secure_sum
from fl_sketch.network.messages import Kind, Message
from fl_sketch.network.policy import Budget, Refused
from fl_sketch.network.programs import Counts, Programs
from fl_sketch.network.secure_sum import Identity, Party, Sum
from fl_sketch.workdir import checkpoint

UNKNOWN = "unknown"  # the code of a refusal: the site does not know the run
STATES, OPEN = "state", "open_round"  # in the folder of a run
ANSWER = "answer/"  # begins the names of answers in the file of an open round


class Part(NamedTuple):
    """A site's part in a run.

    Attributes:
      number: the number of the site's client.
      data: the site's examples on its device, as those of client 0 (`data.Resident`).
      roots: returns the roots of randomness. Of a private run the secret one is another
        one each time.
      folder: the site's own folder of the run.
      names, identity, smallest: the names of all sites, what signs keys in masked sums,
        and the fewest sites of one.
    """

    run: str
    number: int
    programs: Programs
    data: Any
    roots: Callable[[], Roots]
    budget: Budget
    folder: pathlib.Path
    names: tuple[str, ...] = ()
    identity: Identity | None = None
    smallest: int = 3


class OpenRound(NamedTuple):
    """The round that a site is in.

    Attributes:
      model: what clients read of the server.
      asked: a digest of the question of each exchange so far.
      answers: payloads by the digests of their questions, of all questions of a round.
    """

    number: int
    model: Any
    client: Client
    work: Work
    keys: Keys
    means: tuple[Any, ...]
    asked: tuple[str, ...]
    answers: Mapping[str, bytes]


class Site:
    """Answers messages."""

    def __init__(
        self, join: Callable[[Message], Part], say: Callable[[str], None] = print
    ):
        """Takes what makes a part of the terms of a run, or raises `Refused`.

        The site's own log gets the lines that it says.
        """
        self._join, self._say = join, say
        self._part: Part | None = None
        self._open: OpenRound | None = None
        # Of the masked sum: the site's side, its question, a digest of its roster.
        self._sum: tuple[Party, str, str] | None = None
        self._lock = threading.Lock()

    def receive(self, data: bytes) -> bytes:
        """Returns the answer to a message, of which it takes one at a time.

        Whatever comes, the answer is a message, and the site waits for the next one.
        """
        with self._lock:
            part = self._part
            try:
                most = len(data)
                if part:
                    roster = secure_sum.ENTRY * len(part.names)
                    most = max(part.programs.longest[1], roster)
                message = messages.read(data, most)
                if message.kind == Kind.TERMS:
                    return messages.pack(self._joined(message))
                if part is None or message.run != part.run:
                    return self._refusal("does not know the run", UNKNOWN)
                if message.site != part.number:
                    msg = f"Expected a message for site {part.number}, got another."
                    raise Refused(msg)
                return messages.pack(self._answered(part, message))
            except Refused as error:
                return self._refusal(str(error))
            except Exception as error:  # nothing of its data may leave a site with it
                self._say(messages.line(f"{type(error).__name__}: {error}"))
                joins = (
                    "could not join the run" if self._part is None else "met an error"
                )
                return self._refusal(f"{joins}; the reason is in the site's own log")

    def _refusal(self, reason: str, code: str = "") -> bytes:
        part, reason = self._part, messages.line(reason)
        if not code:
            self._say(f"refused: {reason}")
        run, number = (part.run, part.number) if part else ("", 0)
        notes = {"reason": reason, "code": code}
        return messages.pack(Message(Kind.REFUSED, run, site=number, notes=notes))

    def _joined(self, message: Message) -> Message:
        """Takes the terms of a run; continues in its open round, if there is one."""
        self._part = self._open = self._sum = None
        part = self._join(message)
        if (done := _done(part)) > message.round:
            msg = (
                f"Expected a run after round {done}, which this site has done, got one "
                f"after round {message.round}: begin in another workdir."
            )
            raise Refused(msg)
        self._part, self._open = part, _kept(part)
        return _reply(part, Kind.HELLO, message)

    def _answered(self, part: Part, message: Message) -> Message:
        if message.kind in (Kind.MODEL, Kind.MEAN):
            return self._asked(part, message)
        if message.kind == Kind.END:
            return self._ended(part, message)
        if message.kind in (Kind.ROSTER, Kind.REVEAL):
            return self._summed(part, message)
        msg = f"Expected a message of a coordinator, got a {message.kind.name}."
        raise Refused(msg)

    def _require_open(self, message: Message, means: int) -> OpenRound:
        """Returns the open round; raises if it is another or has fewer means."""
        at = self._open
        if at is None or at.number != message.round or len(at.means) < means:
            msg = (
                f"Expected to be in round {message.round + 1} and exchange "
                f"{message.exchange + 1}, and am not."
            )
            raise Refused(msg)
        return at

    def _asked(self, part: Part, message: Message) -> Message:
        """Answers a question: with what is stored, or with another release."""
        programs, number, exchange = part.programs, message.round, message.exchange
        first = message.kind == Kind.MODEL
        if first == bool(exchange) or exchange >= len(programs.exchanges):
            msg = "Expected a MODEL first in a round, and MEANs after it, got others."
            raise Refused(msg)
        counts, at = _counts(message), self._open
        if not first:
            at = self._require_open(message, exchange - 1)
        here = at is not None and at.number == number
        before = at.asked[:exchange] if at and here else ()
        about = [number, exchange, *map(float, counts), *before]
        question = _digest(json.dumps(about).encode() + message.payload)
        answers = at.answers if at and here else {}
        if at and question in answers:
            return self._sent(part, message, at, question)
        if number < (done := _done(part)):
            msg = f"Expected round {done + 1} or a later one, got round {number + 1}."
            raise Refused(msg)
        if first:
            leaves, means = programs.model.unpack(message.payload), ()
        else:
            assert at
            mean = programs.mean_in(exchange - 1, message.payload)
            means = (*at.means[: exchange - 1], mean)
        anew = not part.budget.charge(number, exchange)
        keys = round_keys(part.roots(), number, part.number)
        noise = again(keys.own, bytes.fromhex(question)) if anew else keys.own
        if first:
            server, client = programs.with_model(leaves, number), _state(part)
            client = client or initial_server(programs.algorithm, server.params)[1]
            work = programs.work(server, client, part.data, keys)
            state = leaves, client, work, keys, means
            at = OpenRound(number, *state, (question,), answers)
        assert at
        asked = (*before, question)
        at = at._replace(means=means, asked=asked)
        server = programs.with_model(at.model, number)
        known = server, at.client, at.work, at.keys, counts, means
        which, codes = programs.send(exchange, *known, noise)
        arrays = [np.asarray(one) for one in codes[int(which)]]
        if not all(np.isfinite(one).all() for one in arrays if one.dtype.kind == "f"):
            msg = "Expected an update of finite numbers, got one that is not."
            raise Refused(msg)
        answer = programs.exchanges[exchange].up[int(which)].pack(arrays)
        at = at._replace(answers={**answers, question: answer})
        _keep(part, at)
        self._open = at
        return self._sent(part, message, at, question)

    def _sent(self, part: Part, message: Message, at: OpenRound, question: str):
        """Returns the answer to a question, or the key by which it will be masked."""
        if not part.programs.masked:
            return _reply(part, Kind.MESSAGE, message, at.answers[question])
        if part.identity is None:
            msg = f"Expected {secure_sum.FILE} in the site's kit, got none: make kits."
            raise Refused(msg)
        (field,) = part.programs.exchanges[message.exchange].up[0].fields
        attempt = messages.whole(message.notes, "attempt", 0, 2**31)
        place = part.run, message.round, message.exchange, attempt
        sum_ = Sum(*place, field.count, field.bits)
        party = Party(sum_, part.number, part.identity)
        self._sum = party, question, ""
        return _reply(part, Kind.KEYS, message, party.key())

    def _summed(self, part: Part, message: Message) -> Message:
        """Goes on in the masked sum that is open."""
        at, place = self._open, (message.round, message.exchange)
        if at is None or self._sum is None or place != self._sum[0].sum[1:3]:
            msg = "Expected a masked sum that is open, got a stage of another."
            raise Refused(msg)
        party, question, roster = self._sum
        if message.kind == Kind.REVEAL:
            if not roster:
                msg = "Expected a roster before the seed of a mask, got none."
                raise Refused(msg)
            own = part.programs.own_noise
            part.budget.complete([*place], question, roster, own)
            self._sum = None
            return _reply(part, Kind.SEED, message, party.seed())
        layout = part.programs.exchanges[message.exchange].up[0]
        (numbers,) = layout.unpack(at.answers[question])
        sites = secure_sum.read_roster(message.payload, len(part.names))
        try:
            sent = party.masked(message.payload, part.names, part.smallest, numbers)
        except ValueError as error:  # which says nothing of the site
            raise Refused(str(error)) from None
        self._sum = party, question, _digest(json.dumps([*sites]).encode())
        return _reply(part, Kind.MESSAGE, message, sent)

    def _ended(self, part: Part, message: Message) -> Message:
        """Ends a round in which the site counted: the client gets its new state."""
        programs, last = part.programs, len(part.programs.exchanges) - 1
        if message.round < _done(part):
            return _reply(part, Kind.DONE, message)  # it has ended before
        if message.exchange != last or not programs.stateful:
            msg = "Expected no end of this round, got one."
            raise Refused(msg)
        at, counts = self._require_open(message, last), _counts(message)
        means = (*at.means[:last], programs.mean_in(last, message.payload))
        server = programs.with_model(at.model, at.number)
        state = programs.finish(server, at.client, at.work, at.keys, counts, means)
        whole = jax.device_get(state)
        checkpoint.save(part.folder / STATES, at.number + 1, whole, keep=1)
        self._open = self._sum = None
        return _reply(part, Kind.DONE, message)


def _reply(part: Part, kind: Kind, asked: Message, payload: bytes = b"") -> Message:
    place = part.run, asked.round, asked.exchange, part.number
    return Message(kind, *place, payload=payload)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _counts(message: Message) -> Counts:
    """Returns how clients count, as the coordinator says it."""
    values = messages.floats(message.notes, "counts", 3)
    return Counts(*(np.float32(one) for one in values))


def _done(part: Part) -> int:
    """Returns the number of rounds after which the client's state is."""
    return max(checkpoint.rounds(part.folder / STATES), default=0)


def _state(part: Part) -> Client | None:
    """Returns the state of the client from its disk; None: it is the first one."""
    done, like = _done(part), part.programs.client
    return checkpoint.of_round(part.folder / STATES, done, like).tree if done else None


def _keep(part: Part, at: OpenRound) -> None:
    """Writes an open round to the disk, if anything of it is needed after a kill."""
    extra: dict[str, Any] = {ANSWER + name: one for name, one in at.answers.items()}
    extra["asked"] = json.dumps(at.asked).encode()
    keys = jax.tree.map(jax.random.key_data, at.keys)
    tree = tuple(at._replace(keys=keys)[1:6]) if _remembers(part.programs) else ()
    if tree or part.programs.algorithm.mechanism:
        checkpoint.save(part.folder / OPEN, at.number, tree, keep=1, extra=extra)


def _kept(part: Part) -> OpenRound | None:
    """Returns the open round on the disk, if there is one that continues."""
    folder, programs, like = part.folder / OPEN, part.programs, ()
    number = max(checkpoint.rounds(folder), default=-1)
    if number < _done(part):
        return None
    asked = checkpoint.array_of(checkpoint.path_of(folder, number), "extra/asked")
    asked = tuple(json.loads(asked.tobytes()))
    if _remembers(programs):
        keys = round_keys(part.roots(), 0, part.number)
        data = jax.tree.map(jax.random.key_data, keys)
        shapes = programs.client, programs.worked, data
        means = tuple(one.mean for one in programs.exchanges[: len(asked) - 1])
        like = ([*programs.model.leaves], *shapes, means)
    saved = checkpoint.of_round(folder, number, like)
    answers = {
        name.removeprefix(ANSWER): value.tobytes()
        for name, value in saved.extra.items()
        if name.startswith(ANSWER)
    }
    state: Any = saved.tree if like else (*[None] * 4, ())
    at = OpenRound(number, *state, asked=asked, answers=answers)
    if like:
        kinds = jax.tree.map(jax.random.key_impl, keys)
        wrapped = (
            jax.random.wrap_key_data(one, impl=kind)
            for one, kind in zip(at.keys, kinds, strict=True)
        )
        at = at._replace(keys=Keys(*wrapped))
    return at


def _remembers(programs: Programs) -> bool:
    """Whether a round continues after its first answer."""
    return programs.stateful or len(programs.exchanges) > 1
