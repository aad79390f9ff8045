"""A coordinator: rounds of clients that are elsewhere, bytes out and bytes in.

It draws cohorts, adds messages up and takes the server's step, as `engine` does it for
clients in one program. A site that does not answer, or answers with anything but a
message of this round, is left out of it, and one line says so. With too few left,
nothing is released: the round is asked for again, in the same frames, which sites
answer with the same messages at no further cost.
"""

import pathlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fl_sketch.core.keys import again, of_client, of_round, roots_of
from fl_sketch.core.protocols import Keys, Roots, Server
from fl_sketch.engine import cohort as cohorts
from fl_sketch.engine.clients import zeros
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.exchange import added
from fl_sketch.engine.round import Report, State
from fl_sketch.network import exchange_sums, following, frames, site, site_sums
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.ends import Ends
from fl_sketch.network.exchange_sums import Came
from fl_sketch.network.following import History
from fl_sketch.network.frames import Frame, Kind
from fl_sketch.network.known import Heard
from fl_sketch.network.released import Released
from fl_sketch.network.round_report import (
    Asked,
    Silence,
    Spoken,
    asked_of,
    report_of,
)

Make = Callable[[int], Frame]
Send = Callable[[Mapping[int, bytes], float], Mapping[int, bytes]]


class TooFew(RuntimeError):
    """Too few sites answer for a round to be released."""


class Rules(NamedTuple):
    """When a round goes on without a site.

    Attributes:
      seconds: how long a site has for an answer.
      smallest: the least number of messages of a round that is released.
      attempts: how often a round of fewer is asked for.
      pause: seconds between these.
    """

    seconds: float = 60.0
    smallest: int = 1
    attempts: int = 10
    pause: float = 1.0


class Coordinator:
    """Plays rounds with sites."""

    def __init__(
        self,
        conversation: Conversation,
        sampler: Sampler,
        roots: Roots,
        send: Send,
        *,
        terms: Callable[[int], Mapping[str, Any]] = lambda client: {},
        rules: Rules = Rules(),  # noqa: B008 - immutable
        follows: bool = False,
        back: Callable[[], Sequence[int]] = tuple,
        folder: pathlib.Path | None = None,
        say: Callable[[str], None] = print,
    ):
        """Takes what a run needs of the sites' side.

        Args:
          conversation: the programs of the algorithm.
          sampler: who takes part in a round.
          roots: the roots of the run.
          send: `(frame for each client, seconds) -> answers of those that came`.
          terms: `(client) -> notes` of the frame by which a site joins the run.
          rules: when a round goes on without a site.
          follows: whether sites take the server's steps themselves.
          back: `() -> rounds` that have a checkpoint, to which this run may go back.
          folder: where it keeps what it must know after a kill; None: nowhere.
          say: prints a line.
        """
        self._talk, self._sampler, self._roots = conversation, sampler, roots
        self._send, self._terms, self._rules = send, terms, rules
        self._back, self._say = back, say
        self._history = History(conversation) if follows else None
        self._ends = Ends(folder)
        self._sums = Released(roots_of(roots).secret, folder)
        self._joined: dict[int, dict[str, Any]] = {}
        self._said: dict[int, str] = {}
        self._silence, self._most = Silence(), conversation.longest
        self._drawn = jax.jit(lambda number: cohorts.of_round(sampler, roots, number))

    def join(
        self, clients: Collection[int], done: int, playing: int = -1
    ) -> dict[int, dict[str, Any]]:
        """Tells sites the terms of the run; returns what each that joins says.

        Args:
          done: the number of rounds done.
          playing: the round that is being played, if one is.
        """
        for client in clients:
            self._joined.pop(client, None)
        asked = {
            one: Frame(
                Kind.TERMS,
                done,
                site=one,
                notes={**self._terms(one), "client": one, "playing": playing},
            )
            for one in clients
        }
        for client, answer in self._answers(asked, Kind.HELLO).items():
            if answer.program != self._talk.digest:
                self._say(f"site {client} runs other programs: {_versions(answer)}")
            else:
                self._joined[client] = answer.notes
                if self._history:
                    has = int(answer.notes.get("follows", -1))
                    digest = str(answer.notes.get("server", ""))
                    self._history.joined(client, has, digest)
        return {one: self._joined[one] for one in clients if one in self._joined}

    def one_round(self, state: State, number: int) -> tuple[State, Report]:
        """Returns the state after a round, and its report along an axis of one."""
        server, asked = state.server, self.asked(number)
        keys = of_client(of_round(self._roots, number), 0)
        for attempt in range(self._rules.attempts):
            if attempt:
                time.sleep(self._rules.pause)
            spoken = self._spoken(server, asked, keys, number, attempt)
            if isinstance(spoken, Spoken):
                break
            few, enough = len(spoken.clients), max(self._smallest, spoken.needed)
            self._say(
                f"round {number + 1}: {few} sites answered, {enough} must; nothing is "
                "released, and the round is asked for again"
            )
        else:
            msg = (
                f"Expected {enough} sites in round {number + 1}, got {few} after "
                f"{self._rules.attempts} attempts: see the lines above. To continue, "
                "run the same command again."
            )
            raise TooFew(msg)
        counts = asked.among(spoken.counted)
        after = self._talk.serve(server, spoken.guard, keys, counts, spoken.heard.means)
        if self._history:
            self._history.note(number, spoken.heard.means, counts)
            self._history.got(spoken.seen, number)
            self._history.heard(spoken.counted)
        self._end(spoken, server, keys, counts, number)
        return State(after, ()), report_of(asked, spoken, self._talk.measures)

    def asked(self, number: int) -> Asked:
        """Returns the clients of a round."""
        cohort = jax.device_get(self._drawn(number))
        return asked_of(cohort, self._talk.algorithm.mechanism, self._poisson)

    @property
    def _poisson(self) -> bool:
        return self._sampler.sampling == "poisson"

    @property
    def _smallest(self) -> int:
        return max(self._rules.smallest, self._talk.fewest)

    def _spoken(
        self, server: Server, asked: Asked, keys: Keys, number: int, attempt: int
    ) -> Spoken | Came:
        """Plays the exchanges of a round; returns what came, if from too few."""
        clients = [int(one) for one in asked.ids[asked.weights > 0]]
        heard_from = self._silence.without(clients, number)
        if not attempt and len(heard_from) >= self._smallest:
            clients = heard_from
        self._ends.begin(number)
        self._catch_up(clients, number)
        spoken = Spoken(tuple(clients), Heard(), server.guard, {}, tuple(clients), {})
        payload = b""
        for exchange in range(len(self._talk.exchanges)):
            counts = asked.among(spoken.counted)
            said: dict[str, Any] = {"counts": [float(one) for one in counts]}
            if self._talk.masked:
                said["sum"] = [len(spoken.counted), attempt]
            down = Frame(Kind.MEAN, number, exchange - 1, notes=said, payload=payload)
            begin = following.begins(self._history, self._talk, server, number, said)
            make = begin if not exchange else lambda client, down=down: down
            known = (server, keys, counts, spoken.heard)
            which = int(self._talk.choice(*known))
            at = (number, exchange, which)
            came = self._summed(spoken.counted, asked, make, known, at)
            if 0 < len(came.clients) < self._smallest or came.total is None:
                return came
            spoken = self._released(spoken, came, keys, asked, at)
            if not exchange:
                spoken = spoken._replace(seen=came.seen)
            if exchange + 1 < len(self._talk.exchanges):
                payload = self._told(spoken, server, keys, counts)
                spoken = spoken._replace(bytes_told=spoken.bytes_told + len(payload))
        return spoken

    def _summed(self, clients, asked: Asked, make: Make, known, at) -> Came:
        """Returns what comes of an exchange."""
        talk, (number, exchange, which) = self._talk, at
        if len(clients) < (self._smallest if self._poisson else talk.fewest):
            return Came((), zeros(talk.summands[exchange]))
        if not talk.masked:
            answers = self._asked(clients, make, number, exchange)
            return exchange_sums.of_messages(
                talk, (exchange, which), answers, asked, known, self._say
            )
        terms = site_sums.terms_of(talk, number, exchange, len(clients))
        self._most = max(talk.longest, exchange_sums.longest(terms))

        def ask(stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            sent = {
                one: Frame(Kind.SUM, number, exchange, one, talk.digest, {}, request)
                for one, request in requests.items()
            }
            kind = Kind.MESSAGE if stage == "numbers" else Kind.PART
            return _payloads(self._answers(sent, kind, number, exchange))

        first = _payloads(self._asked(clients, make, number, exchange, Kind.PART))
        parties = exchange_sums.Parties(clients, first, ask, self._smallest)
        return exchange_sums.under_masks(
            talk, exchange, terms, parties, known, self._say
        )

    def _released(self, spoken, came: Came, keys, asked: Asked, at) -> Spoken:
        """Returns the round after the mean of an exchange."""
        number, exchange, which = at
        came, keys = self._once(came, spoken.guard, keys, (number, exchange))
        counts = asked.among(came.clients)
        found = self._talk.release(exchange, came.total, spoken.guard, keys, counts)
        heard = spoken.heard._replace(means=(*spoken.heard.means, found.mean))
        up = self._talk.exchanges[exchange].up[which].size
        return spoken._replace(
            heard=heard,
            guard=found.state,
            released=added(spoken.released, found.released),
            counted=came.clients,
            bytes_up=spoken.bytes_up + up,
        )

    def _once(self, came: Came, guard, keys: Keys, at) -> tuple[Came, Keys]:
        """Returns a sum and the keys of its noise; none if another was released."""
        mechanism, (number, exchange) = self._talk.algorithm.mechanism, at
        if not (mechanism and mechanism.noise_multiplier):
            return came, keys
        digest = self._sums.other(number, exchange, (came.total, guard))
        if not digest:
            return came, keys
        self._say(
            f"round {number + 1}: another sum of it was released before this run was "
            "stopped; nothing is released"
        )
        none = Came((), zeros(self._talk.summands[exchange]))
        return none, keys._replace(server=again(keys.server, digest))

    def _told(self, spoken, server, keys, counts) -> bytes:
        """Returns what clients need of the newest mean, or the replies after it."""
        means = spoken.heard.means
        last = len(means) - 1
        one = self._talk.exchanges[last]
        replies: list[Any] = []
        if not one.told and one.replies:
            whole = self._talk.replied(server, keys, counts, means)
            replies = jax.device_get(whole)[-one.replies :]
        return self._talk.told_of(last, jax.device_get(means[last]), replies)

    def _end(self, spoken, server, keys, counts, number: int) -> None:
        """Tells the sites of a round how it ended, where they keep something."""
        if not self._talk.stateful:
            return
        payload = self._told(spoken, server, keys, counts)
        last = len(self._talk.exchanges) - 1
        said = {"counts": [float(one) for one in counts], "back": [*self._back()]}
        for client in spoken.asked:
            if client in self._ends:
                continue  # it is still in an earlier round, and was not asked
            counted = client in spoken.counted
            notes = {**said, "counted": counted}
            at = (number, last, client, self._talk.digest)
            end = Frame(Kind.END, *at, notes, payload if counted else b"")
            self._ends.add(client, end)
        self._deliver(spoken.counted)
        self._ends.keep()

    def _deliver(self, clients: Collection[int]) -> None:
        """Sends sites the ends of rounds that they have not confirmed."""
        for client in self._answers(self._ends.of(clients), Kind.DONE):
            self._ends.drop(client)

    def _catch_up(self, clients: Collection[int], number: int) -> None:
        """Joins sites that are not in the run, and ends rounds that are open there."""
        self._deliver([one for one in clients if one in self._joined])
        missing = [one for one in clients if one not in self._joined]
        if missing:  # or if they began anew
            self.join(missing, number)
            self._deliver([one for one in missing if one in self._joined])

    def _asked(
        self,
        clients: Sequence[int],
        make: Make,
        number: int,
        exchange: int,
        kind: Kind = Kind.MESSAGE,
    ) -> dict[int, Frame]:
        """Returns what sites send that answer a frame."""
        here = [one for one in clients if one in self._joined and one not in self._ends]

        def made(client: int) -> Frame:
            return make(client)._replace(site=client, program=self._talk.digest)

        sent = {one: made(one) for one in here}
        answers = self._answers(sent, kind, number, exchange)
        began = [one for one in here if one not in self._joined]  # they began anew
        if began:
            self.join(began, number, playing=number)
            anew = {one: made(one) for one in began if one in self._joined}
            answers |= self._answers(anew, kind, number, exchange)
        return answers

    def _answers(
        self, sent: Mapping[int, Frame], kind: Kind, number: int = -1, exchange: int = 0
    ) -> dict[int, Frame]:
        """Returns the answers of this kind that came in time and are whole."""
        data = {client: frames.write(frame) for client, frame in sent.items()}
        came, found = self._send(data, self._rules.seconds) if data else {}, {}
        for client in sent:
            if client not in came:
                later = self._silence.missed(client)
                limit = f"within {self._rules.seconds:g} s{later}"
                self._say(f"site {client} did not answer {limit}")
                continue
            self._silence.ended(client)
            try:
                answer = frames.read(came[client], self._most)
                self._require(answer, kind, client, (number, exchange))
                found[client] = answer
                self._said.pop(client, None)
            except ValueError as error:
                if self._said.get(client) != str(error):  # once, if it stays the same
                    self._say(f"site {client}: {error}")
                self._said[client] = str(error)
        return found

    def _require(self, answer: Frame, kind: Kind, client: int, at) -> None:
        """Raises unless an answer is what was asked for."""
        if answer.kind == Kind.REFUSED:
            self._refused(answer, client)
        got, expected = (answer.kind, answer.site), (kind, client)
        if kind in (Kind.MESSAGE, Kind.PART):
            got += (answer.round, answer.exchange, answer.program)
            expected += (*at, self._talk.digest)
        if got != expected:
            msg = (
                f"Expected a {kind.name} of site {client}, round {at[0]}, exchange "
                f"{at[1]}, got a {answer.kind.name} of site {answer.site}, round "
                f"{answer.round}, exchange {answer.exchange}."
            )
            raise ValueError(msg)

    def _refused(self, answer: Frame, client: int) -> None:
        """Raises with the reason of a site that refuses."""
        code = answer.notes.get("code")
        if code == site.TERMS:
            self._joined.pop(client, None)
        elif code == "unknown" and client in self._ends:
            lost = self._ends.drop(client).notes["counted"]
            if not lost:
                msg = "it never began a round in which it did not count."
                raise ValueError(msg)
        reason = str(answer.notes.get("reason", ""))[:400]
        msg = f"refuses round {answer.round + 1}: {' '.join(reason.split())}"
        raise ValueError(msg)


def _payloads(answers: Mapping[int, Frame]) -> dict[int, bytes]:
    return {client: answer.payload for client, answer in answers.items()}


def _versions(answer: Frame) -> str:
    """Says which versions of packages a site has."""
    versions = answer.notes.get("versions", {})
    return ", ".join(f"{name} {one}" for name, one in sorted(versions.items()))[:400]
