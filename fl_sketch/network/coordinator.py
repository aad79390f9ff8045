"""A coordinator: rounds of clients that are elsewhere, bytes out and bytes in.

It draws cohorts, adds messages up and takes the server's step, as `engine` does it for
clients in one program. A site that does not answer, or answers with anything but a
message of this exchange, is left out of the round, and a line with its name says so.
With too few left nothing is released, and the exchange is asked for again.

With noise or under masks, a round of which something may have been released when a
coordinator was stopped is over: it counts, and releases nothing. Two sums of it would
show their difference.
"""

import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core import files
from fl_sketch.core.keys import again, of_client, of_round
from fl_sketch.core.protocols import Roots
from fl_sketch.engine import cohort as cohorts
from fl_sketch.engine.clients import zeros
from fl_sketch.engine.cohort import LEAST, Sampler
from fl_sketch.engine.exchange import added
from fl_sketch.engine.recorder import column_of
from fl_sketch.engine.round import Report, SimulatorOnly, State
from fl_sketch.network import messages, secure_sum, site
from fl_sketch.network.messages import Kind, Message
from fl_sketch.network.programs import Counts, Programs
from fl_sketch.network.secure_sum import Sum

# `(message for each client, seconds) -> answers`; an empty one of a site that the
# message reached and that did not answer.
Send = Callable[[Mapping[int, bytes], float], Mapping[int, bytes]]
BEGUN, ENDS = "begun", "ends.json"  # in the coordinator's folder
LONGEST = 31  # rounds in which a site that does not answer is not asked


class TooFew(ValueError):
    """Too few sites answer for a round to be released."""


class Rules(NamedTuple):
    """When a round continues without a site.

    A site has some seconds for an answer. A round of fewer than the smallest number of
    messages is not released, and is asked for so many times, with a pause between them.
    """

    seconds: float = 60.0
    smallest: int = 1
    attempts: int = 10
    pause: float = 1.0


class Cohort(NamedTuple):
    """The clients of a round, and the sizes that `engine.cohort.Cohort` has."""

    clients: tuple[int, ...]
    denominator: np.float32
    population: np.float32


class Added(NamedTuple):
    """Whose messages came, their sum (None: of too few), and the bytes of each."""

    clients: tuple[int, ...]
    total: Any
    size: int = 0


class Coordinator:
    """Plays rounds with sites."""

    def __init__(
        self,
        programs: Programs,
        sampler: Sampler,
        roots: Roots,
        send: Send,
        *,
        run: str,
        names: Sequence[str],
        folder: pathlib.Path,
        terms: Mapping[str, Any] | None = None,
        secret: bool = False,
        rules: Rules = Rules(),  # noqa: B008 - immutable
        before_round: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = print,
    ):
        """Takes what a run needs.

        Args:
          run, names: the name of the run, and those of the sites by client.
          folder: where it keeps what it must know after a kill.
          terms: the notes of the message by which a site joins.
          secret: whether noise must be secret: then it is also a function of the sum.
          before_round: is called when nothing of a round was released; may raise.
        """
        for name, value in rules._asdict().items():
            if value < (0 if name == "pause" else 1):
                msg = f"Expected {name} to be at least 1, got {name}={value}."
                raise ValueError(msg)
        self._programs, self._sampler, self._roots = programs, sampler, roots
        self._transport, self._run, self._names = send, run, names
        self._terms, self._rules, self._folder = terms or {}, rules, folder
        self._secret, self._poisson = secret, sampler.sampling == "poisson"
        self._smallest = max(rules.smallest, programs.fewest)
        self._before_round, self._say = before_round, say
        self._drawn = jax.jit(lambda number: cohorts.of_round(sampler, roots, number))
        self._joined = set[int]()
        self._reached, self._refused = set[int](), set[int]()
        self._missed: dict[int, tuple[int, int]] = {}  # how often, and until when
        self._said: dict[int, str] = {}
        begun, ends = folder / BEGUN, folder / ENDS
        self._begun = self._lost = int(begun.read_text()) if begun.exists() else -1
        # The last round in which sites counted that have not confirmed its end, and of
        # such rounds the counts and the mean.
        self._ends, self._means = {}, {}
        if ends.exists():
            sites, self._means = json.loads(ends.read_text())
            self._ends = {int(client): number for client, number in sites.items()}

    def one_round(self, state: State, number: int) -> tuple[State, Report]:
        """Returns the state after a round, and its report along an axis of one."""
        self._before_round()
        self.end_rounds(number)
        programs, server, self._reached = self._programs, state.server, set()
        keys, drawn = of_client(of_round(self._roots, number), 0), self._cohort(number)
        careful = programs.noisy or programs.masked
        lost = careful and number <= self._lost
        if lost:
            self._say(
                f"round {number + 1} had begun when this run was stopped: it counts, "
                "and releases nothing"
            )
        clients, means, guard, released = drawn.clients, (), server.guard, {}
        payload = programs.model.pack(jax.device_get(programs.of_model(server)))
        up = down = 0
        for exchange, one in enumerate(programs.exchanges):
            known = server, keys, self._counts(drawn, clients), means
            if lost:
                came = self._nothing(exchange)
            else:
                came = self._summed(clients, number, exchange, payload, drawn, known)
            down += len(payload) if exchange else 0
            clients, up = came.clients, up + came.size
            if careful:
                self._begin(number)
            counts = self._counts(drawn, clients)
            if self._secret or lost:  # another sum has other noise
                digest = hashlib.sha256()
                for leaf in jax.tree.leaves((came.total, guard)):
                    digest.update(np.asarray(leaf).tobytes())
                keys = keys._replace(server=again(keys.server, digest.digest()))
            of_sum = programs.release(exchange, came.total, guard, keys, counts)
            guard, released = of_sum.state, added(released, of_sum.released)
            means = (*means, of_sum.mean)
            payload = one.down.pack(jax.tree.leaves(jax.device_get(of_sum.mean)))
        counts = self._counts(drawn, clients)
        after = programs.serve(server, guard, keys, counts, means)
        if programs.stateful and clients:
            self._means[str(number)] = [*map(float, counts)], payload.hex()
            self._keep_ends(self._ends | dict.fromkeys(clients, number))
        for name in programs.worked.diagnostics:  # stays at the sites
            released[column_of(name)] = np.float32(np.nan)
        # Questions that did not reach a site are not counted.
        asked = np.array(
            [c if c in self._reached else -1 for c in drawn.clients] or [-1]
        )
        answered = np.isin(asked, clients)
        sizes: Any = asked, answered, np.int64(up), np.int64(down), {}
        shown = SimulatorOnly(*sizes)
        report = jax.tree.map(lambda x: np.asarray(x)[None], Report(released, shown))
        return State(after, ()), report

    def end_rounds(self, number: int) -> None:
        """Sends sites the ends of rounds before this one that they have not confirmed.

        The state after these rounds is on the coordinator's disk by then. Ends of later
        rounds are forgotten: these were lost with the coordinator's process.
        """
        ends = {one: at for one, at in self._ends.items() if at < number}
        last, asked, self._refused = len(self._programs.exchanges) - 1, {}, set()
        for client in (one for one in ends if self._is_asked(one, number)):
            counts, mean = self._means[str(ends[client])]
            at, notes = (self._run, ends[client], last, client), {"counts": counts}
            asked[client] = Message(Kind.END, *at, notes, bytes.fromhex(mean))
        confirmed = {*self._joined_answers(asked, Kind.DONE, number)} | self._refused
        left = {one: at for one, at in ends.items() if one not in confirmed}
        if left != self._ends:
            self._keep_ends(left)

    def _keep_ends(self, ends: dict[int, int]) -> None:
        self._ends, needed = ends, {str(at) for at in ends.values()}
        self._means = {at: self._means[at] for at in self._means if at in needed}
        files.write_text(self._folder / ENDS, json.dumps([ends, self._means]))

    def _begin(self, number: int) -> None:
        """Notes on the disk that something of a round may be released from here on."""
        if self._begun < number:
            files.write_text(self._folder / BEGUN, str(number))
            self._begun = number

    def _cohort(self, number: int) -> Cohort:
        """Returns the clients of a round, which all count alike."""
        drawn = jax.device_get(self._drawn(number))
        clients = tuple(int(one) for one in drawn.ids[drawn.weights > 0])
        sizes = drawn.denominator, drawn.population
        return Cohort(clients, *map(np.float32, sizes))

    def _counts(self, drawn: Cohort, clients: Collection[int]) -> Counts:
        """Returns how clients count if these of them answer, as `engine.round` does."""
        if mechanism := self._programs.algorithm.mechanism:  # noise hides who answers
            expected = np.float32(mechanism.denominator)
            return Counts(expected, expected, drawn.population)
        present, divided = np.float32(len(clients)), drawn.denominator
        if not self._poisson:
            divided = max(present, np.float32(LEAST))
        return Counts(divided, present, drawn.population)

    def _nothing(self, exchange: int) -> Added:
        """Returns the sum of an exchange in which nobody takes part."""
        return Added((), zeros(self._programs.exchanges[exchange].summand))

    def _summed(
        self, clients, number: int, exchange: int, payload: bytes, drawn: Cohort, known
    ) -> Added:
        """Returns the sum of an exchange, which is asked for until enough answer."""
        if len(clients) < (self._smallest if self._poisson else self._programs.fewest):
            return self._nothing(exchange)
        kind, few = Kind.MEAN if exchange else Kind.MODEL, 0
        notes = {"counts": [*map(float, known[2])]}
        asked = [one for one in clients if self._is_asked(one, number)]
        for attempt in range(self._rules.attempts):
            if attempt:
                time.sleep(self._rules.pause)
                if not exchange:
                    self._before_round()
            if attempt or len(asked) < self._smallest:
                asked = clients
            about = notes | {"attempt": attempt} if self._programs.masked else notes
            question = Message(kind, self._run, number, exchange, 0, about, payload)
            if self._programs.masked:
                came = self._masked(asked, question, known)
            else:
                came = self._plain(asked, question, drawn, known)
            few = len(came.clients)
            if came.total is not None and (not few or few >= self._smallest):
                return came
            self._say(
                f"round {number + 1}: {few} sites answered, {self._smallest} must; "
                "nothing is released, and they are asked again"
            )
        msg = (
            f"Expected {self._smallest} sites in round {number + 1}, got {few} after "
            f"{self._rules.attempts} attempts: see the lines above. To continue, "
            "run the same command again."
        )
        raise TooFew(msg)

    def _plain(self, asked, question: Message, drawn: Cohort, known) -> Added:
        """Returns the weighted sum of messages in the clear."""
        programs, exchange = self._programs, question.exchange
        server, keys, _, means = known
        which, arrays, total = int(programs.choice(*known)), {}, None
        layout = programs.exchanges[exchange].up[which]
        answers = self._asked(asked, question, Kind.MESSAGE)
        for client, answer in answers.items():
            try:
                arrays[client] = layout.unpack(answer.payload)
            except ValueError as error:
                self._complain(client, str(error))
        clients = tuple(one for one in drawn.clients if one in arrays)
        state = server, keys, self._counts(drawn, clients), means
        for client in clients:  # in one order, whoever answered late
            one = programs.summand(exchange, which, *state, arrays[client])
            total = zeros(one) if total is None else total
            total = programs.add(total, one)
        return Added(clients, total, layout.size)

    def _masked(self, asked, question: Message, known) -> Added:
        """Returns the sum of masked messages, to which all of a roster must stay."""
        programs, at = self._programs, question.exchange
        (field,) = programs.exchanges[at].up[0].fields
        place = self._run, question.round, at, question.notes["attempt"]
        sum_ = Sum(*place, field.count, field.bits)

        def stage(kind: Kind, clients, payload: bytes, answer: Kind, size: int):
            asks = question._replace(kind=kind, payload=payload)
            return self._whole(self._asked(clients, asks, answer), size)

        size = secure_sum.KEY + secure_sum.SIGNATURE
        keys = stage(question.kind, asked, question.payload, Kind.KEYS, size)
        clients, roster = tuple(sorted(keys)), secure_sum.write_roster(keys)
        if len(clients) < self._smallest:
            return Added(clients, None)
        masked = stage(Kind.ROSTER, clients, roster, Kind.MESSAGE, sum_.size)
        if len(masked) < len(clients):
            return Added(tuple(masked), None)
        self._begin(question.round)
        seeds = stage(Kind.REVEAL, clients, b"", Kind.SEED, secure_sum.SEED)
        if len(seeds) < len(clients):  # the others reveal theirs for no other roster
            self._say(
                f"round {question.round + 1}: a site left before the sum could be "
                "read: the round counts, and releases nothing"
            )
            return self._nothing(at)
        numbers = secure_sum.total(sum_, masked, seeds)
        total = programs.of_sum(*known, numbers, np.float32(len(clients)))
        return Added(clients, total, sum_.size)

    def _whole(self, answers: Mapping[int, Message], size: int) -> dict[int, bytes]:
        """Returns the payloads that have their only possible length."""
        payloads = {client: one.payload for client, one in answers.items()}
        for client in (one for one in payloads if len(payloads[one]) != size):
            self._complain(client, "sent a message of another length")
        return {client: one for client, one in payloads.items() if len(one) == size}

    def _asked(self, clients, question: Message, kind: Kind) -> dict[int, Message]:
        """Returns the answers of sites to a question."""
        here = [one for one in clients if one not in self._ends]
        sent = {client: question._replace(site=client) for client in here}
        if question.kind in (Kind.MODEL, Kind.MEAN):
            return self._joined_answers(sent, kind, question.round)
        return self._answers(sent, kind)

    def _joined_answers(
        self, sent: Mapping[int, Message], kind: Kind, done: int
    ) -> dict[int, Message]:
        """Returns answers of sites, which join before, or if they began anew."""
        answers, left = {}, dict(sent)
        for _ in range(2):
            missing = [one for one in left if one not in self._joined]
            terms = Message(Kind.TERMS, self._run, done, 0, 0, self._terms)
            asked = {one: terms._replace(site=one) for one in missing}
            self._joined |= {*self._answers(asked, Kind.HELLO)}
            here = {c: one for c, one in left.items() if c in self._joined}
            answers |= self._answers(here, kind)
            left = {c: one for c, one in here.items() if c not in self._joined}
        return answers

    def _answers(self, sent: Mapping[int, Message], kind: Kind) -> dict[int, Message]:
        """Returns the answers of this kind that came in time and are whole."""
        data = {client: messages.pack(one) for client, one in sent.items()}
        came = self._transport(data, self._rules.seconds) if data else {}
        found, most = {}, max(self._programs.longest[0], 2**10)
        for client, question in sent.items():
            if question.kind in (Kind.MODEL, Kind.MEAN) and client in came:
                self._reached.add(client)
            if not came.get(client):
                self._absent(client, question.round)
                continue
            if self._missed.pop(client, None):
                self._say(f"{self._names[client]} answers again")
            try:
                answer = messages.read(came[client], most)
            except ValueError as error:
                self._complain(client, str(error))
                continue
            if answer[:5] == question._replace(kind=kind)[:5]:
                found[client] = answer
                self._said.pop(client, None)
            elif answer.kind != Kind.REFUSED:
                self._complain(client, "sent an answer to another question")
            elif answer.notes.get("code") == site.UNKNOWN:
                self._joined.discard(client)
            else:
                self._refused.add(client)
                reason = messages.line(answer.notes.get("reason", ""))
                self._complain(client, f"refuses: {reason}")
        return found

    def _is_asked(self, client: int, number: int) -> bool:
        return self._missed.get(client, (0, 0))[1] <= number

    def _absent(self, client: int, number: int) -> None:
        """Notes that a site did not answer: it is asked ever more seldom."""
        times = self._missed.get(client, (0, 0))[0] + 1
        rounds = min(2 ** (times - 1) - 1, LONGEST)
        self._missed[client] = times, number + 1 + rounds
        self._complain(
            client,
            f"did not answer within {self._rules.seconds:g} s: see that "
            "startup/start.sh runs there, or start it. Rounds continue without it, and "
            "it takes part again when it is back",
        )

    def _complain(self, client: int, text: str) -> None:
        """Prints a line about a site, once if it stays the same."""
        if self._said.get(client) != text:
            self._say(f"{self._names[client]}: {text}")
        self._said[client] = text
