"""What a site answers, and that lying coordinators and lying sites get no more."""

import random

import jax
import numpy as np
import pytest

from fl_sketch.network import messages, secure_sum
from fl_sketch.network.messages import Kind, Message
from fl_sketch.network.policy import Budget, SitePolicy
from fl_sketch.network.site import Part, Site
from fl_sketch.privacy import accounting, clipping, mechanism
from fl_sketch.privacy.guarantee import promised
from fl_sketch.run import secret_roots
from fl_sketch.workdir import odometer
from tests.network.meeting import QUICK, RUN, Meeting, programs_of, read
from tests.quadratics import CATALOGUE, optima

NAMES = ("a", "b", "c")
PRIVATES, PUBLICS = secure_sum.drawn(NAMES)
IDENTITIES = [secure_sum.Identity(name, PRIVATES[name], PUBLICS) for name in NAMES]
DATA = optima(3)
GUARANTEE = promised(
    accounting.Plan(steps=100, sample=3, population=3, sampling="everyone"),
    rounds=100,
    noise_multiplier=3.0,
    delta=1e-5,
)


def integers(noise="skellam"):
    return mechanism.integers(
        clipping.clip(1.0),
        noise_multiplier=1.0,
        denominator=3,
        bits=16,
        smallest=2 if noise == "skellam" else 0,
    )


@pytest.fixture(scope="module")
def programs():
    safl = CATALOGUE["safl"]
    return {
        "own": programs_of(safl._replace(mechanism=integers())),
        "central": programs_of(safl._replace(mechanism=integers("central"))),
        "plain": programs_of(CATALOGUE["fedavg"]),
    }


class Owned:
    """Site 0 of three, whose owner sets limits, and what a coordinator asks it."""

    def __init__(self, folder, programs, guarantee=GUARANTEE, **limits):
        self.folder, self.programs, self.lines = folder, programs, []
        self.policy = SitePolicy(folder / "data.npz", folder, **limits)
        self.guarantee = guarantee
        self.restart()

    def restart(self):
        def join(message):
            folder = self.folder / message.run
            return Part(
                run=message.run,
                number=0,
                programs=self.programs,
                data=DATA[:1],
                roots=lambda: secret_roots(0),
                budget=Budget(self.policy, message.run, folder, self.guarantee),
                folder=folder,
                names=NAMES,
                identity=IDENTITIES[0],
                smallest=3,
            )

        self.site = Site(join, self.lines.append)
        assert self.ask(Kind.TERMS).kind == Kind.HELLO

    def ask(self, kind, number=0, exchange=0, notes=None, payload=b""):
        message = Message(kind, RUN, number, exchange, 0, notes or {}, payload)
        return read(self.site.receive(messages.pack(message)))

    def model(self, number=0, value=0.0, attempt=0):
        """Asks for the message of a round."""
        leaves = self.programs.of_model(self.programs.server)
        filled = [np.full(leaf.shape, value, leaf.dtype) for leaf in leaves]
        notes = {"counts": [3.0, 3.0, 3.0], "attempt": attempt}
        payload = self.programs.model.pack(filled)
        return self.ask(Kind.MODEL, number, notes=notes, payload=payload)

    def roster(self, own, number=0, sites=(1, 2), attempt=0):
        """Returns a roster of this site's key and those of others."""
        (field,) = self.programs.exchanges[0].up[0].fields
        what = secure_sum.Sum(RUN, number, 0, attempt, field.count, field.bits)
        keys = {n: secure_sum.Party(what, n, IDENTITIES[n]).key() for n in sites}
        return secure_sum.write_roster({0: own.payload} | keys)

    @property
    def counted(self):
        found = odometer.read(self.folder)
        return found[RUN].plan.steps if found else 0


def test_the_same_question_gets_the_same_answer_at_no_cost(tmp_path, programs):
    """Also after a kill. Any other question has other noise, and counts."""
    one = Owned(tmp_path, programs["own"])
    assert one.model().kind == Kind.KEYS and one.counted == 1
    first = dict(one.site._open.answers)
    one.model(attempt=1)
    one.restart()
    one.model(attempt=2)
    assert one.site._open.answers == first and one.counted == 1
    one.model(value=1e-6)
    assert one.counted == 2
    one.model(), one.model(value=1e-6)
    assert one.counted == 2
    numbers = [np.frombuffer(x, "<u2") for x in one.site._open.answers.values()]
    assert len(numbers) == 2 and (numbers[0] != numbers[1]).mean() > 0.5
    one.model(1)
    assert one.counted == 3


@pytest.mark.parametrize("form", ["own", "central"])
def test_a_question_has_one_sum(form, tmp_path, programs):
    """Two sums of the same messages over other sites would show their difference."""
    one = Owned(tmp_path, programs[form])
    assert one.ask(Kind.ROSTER, payload=b"").kind == Kind.REFUSED
    keys = one.model()
    assert one.ask(Kind.REVEAL).kind == Kind.REFUSED
    roster = one.roster(keys)
    assert one.ask(Kind.ROSTER, payload=roster[:200]).kind == Kind.REFUSED  # of two
    keys = one.model()
    masked = one.ask(Kind.ROSTER, payload=one.roster(keys))
    assert masked.kind == Kind.MESSAGE
    assert one.ask(Kind.REVEAL).kind == Kind.SEED
    assert one.ask(Kind.REVEAL).kind == Kind.REFUSED
    one.restart()
    keys = one.model(attempt=1)  # the same sites may be asked again
    payload = one.roster(keys, attempt=1)
    assert one.ask(Kind.ROSTER, payload=payload).kind == Kind.MESSAGE
    assert one.ask(Kind.REVEAL).kind == Kind.SEED
    keys = one.model(value=1.0)  # another question: another noise, if it has its own
    assert one.ask(Kind.ROSTER, payload=one.roster(keys)).kind == Kind.MESSAGE
    own = form == "own"
    assert one.ask(Kind.REVEAL).kind == (Kind.SEED if own else Kind.REFUSED)
    keys = one.model(3)
    one.ask(Kind.ROSTER, 3, payload=one.roster(keys, 3))
    assert one.ask(Kind.REVEAL, 3).kind == Kind.SEED
    keys = one.model(2)  # behind the newest
    one.ask(Kind.ROSTER, 2, payload=one.roster(keys, 2))
    assert one.ask(Kind.REVEAL, 2).kind == Kind.REFUSED


def test_a_question_over_other_sites_is_refused(tmp_path, programs):
    one = Owned(tmp_path, programs["own"])
    one.site._part = one.site._part._replace(smallest=2)
    for attempt, sites in enumerate([(1, 2), (1,)]):
        keys = one.model(attempt=attempt)
        payload = one.roster(keys, sites=sites, attempt=attempt)
        assert one.ask(Kind.ROSTER, payload=payload).kind == Kind.MESSAGE
        answer = one.ask(Kind.REVEAL)
    assert answer.kind == Kind.REFUSED and "other" in answer.notes["reason"]


def mutated(source, whole):
    """Returns bytes of a message, a few of which are others, or a message of others."""
    data = bytearray(source.choice(whole))
    if source.random() < 0.5:  # fields of their types, at the wrong time or place
        found = messages.read(bytes(data), 2**20)
        return messages.pack(
            found._replace(
                kind=source.choice([found.kind, *Kind]),
                round=source.choice([0, 1, 2, 2**31 - 1]),
                exchange=source.choice([0, 0, 1, 255]),
                site=source.choice([0, 0, 1, 2**20 - 1]),
                payload=source.choice([found.payload, b"", found.payload[:-1]]),
            )
        )
    for _ in range(source.randrange(1, 5)):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data[: source.choice([len(data), source.randrange(len(data) + 1)])])


@pytest.mark.slow
def test_a_coordinator_that_lies_gets_what_the_site_allows(tmp_path, programs):
    """10,000 messages get an answer each; what was answered was counted."""
    limit = 40
    one = Owned(tmp_path, programs["own"], epsilon_in_a_run=GUARANTEE.epsilon(limit))
    source, whole, receive = random.Random(1), [], one.site.receive
    one.site.receive = lambda data: whole.append(data) or receive(data)
    keys = one.model()
    one.ask(Kind.TERMS)
    one.ask(Kind.ROSTER, payload=one.roster(keys))
    one.ask(Kind.REVEAL), one.ask(Kind.END)
    one.site.receive = receive
    seen = set()
    for _ in range(10_000):
        data = mutated(source, whole)
        answer = read(one.site.receive(data))
        seen.add(answer.kind)
        assert len(answer.notes.get("reason", "")) <= messages.TEXT
        questions = len(one.site._open.answers) if one.site._open else 0
        assert questions <= one.counted <= limit
    assert Kind.REFUSED in seen and Kind.KEYS in seen
    assert one.counted == limit  # and then nothing more
    assert not [line for line in one.lines if "\n" in line]
    assert {path.name for path in tmp_path.iterdir()} <= {RUN, "odometer.json", "lock"}


def test_a_site_that_lies_ends_nobody_elses_run(tmp_path):
    meeting = Meeting(CATALOGUE["fedavg"], tmp_path)
    source, whole = random.Random(2), []
    meeting.change = lambda client, answer: whole.append(answer) or answer
    state, _ = meeting.play(1)
    notes = {"reason": "\x1b[2Jlook\nhospital_1: fine"}  # cannot move a terminal
    whole += 3 * [messages.pack(Message(Kind.REFUSED, RUN, 1, 0, 4, notes))]
    question = Message(Kind.MODEL, RUN, 1, 0, 4, {"counts": [5.0, 5.0, 5.0]})
    taken = 0
    for _ in range(10_000):
        answer = mutated(source, whole)
        meeting.coordinator._transport = lambda data, seconds, answer=answer: {
            4: answer
        }
        meeting.coordinator._said.clear()
        meeting.lines.clear()
        found = meeting.coordinator._answers({4: question}, Kind.MESSAGE)
        taken += len(found)
        lines = [one for one in meeting.lines if not one.endswith("answers again")]
        assert len(found) + len(lines) <= 1
        for line in lines:
            assert line.startswith("hospital_4: ") and line.isprintable()
    assert taken < 100  # the right head, whose numbers may be any
    meeting.start_coordinator(rules=QUICK._replace(smallest=4))
    meeting.change = lambda c, up: mutated(source, whole) if c == 4 else up
    state, reports = meeting.play(20, state)
    assert all(report.simulator_only.answered.sum() >= 4 for report in reports)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server.params))
