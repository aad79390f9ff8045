"""Rounds over bytes are those of the simulator, whoever dies or lies on the way."""

import jax
import jax.numpy as jnp
import pytest

from fl_sketch import engine
from fl_sketch.core.wire import byte_count
from fl_sketch.network.coordinator import Rules, TooFew
from fl_sketch.network.messages import Kind
from fl_sketch.privacy import clipping, mechanism
from tests.network.meeting import Meeting, close, read
from tests.quadratics import CATALOGUE
from tests.quick import some_fast

# One exchange, two, replies, client state, server memory, codes of several lengths.
SHAPES = ["fedavg", "heaprix", "scaffold", "ef21", "marina", "fetch_sgd", "onebit_adam"]


def kinds(meeting, kind):
    return [(c, q, a) for c, q, a in meeting.sent if q.kind == kind]


@pytest.mark.slow
@pytest.mark.parametrize("name", some_fast(SHAPES, ["heaprix", "scaffold"]))
def test_rounds_are_those_of_the_simulator(name, tmp_path):
    """One of the sites is killed in every round, before its message or after it."""
    cohort = None if name == "onebit_adam" else 3
    meeting = Meeting(CATALOGUE[name], tmp_path, cohort=cohort)

    def kill_later(client, answer):
        if read(answer).kind != Kind.HELLO and len(meeting.sent) % 4 == 0:
            meeting.start_site(client)
        return answer

    meeting.change = kill_later
    state, reports = meeting.play(4)
    expected, simulated = meeting.simulated(4)
    close(state.server.params, expected.server.params)
    close(state.server.memory, expected.server.memory, 1e-5)
    assert not [line for line in meeting.lines if "hospital" in line]
    for ours, theirs in zip(reports, simulated, strict=True):
        ours, theirs = ours.simulator_only, theirs.simulator_only
        assert {*ours.clients[0]} == {*theirs.clients.tolist()}
        assert ours.bytes_up[0] == byte_count(theirs.bytes_up)
    up = sum(len(a.payload) for _, q, a in meeting.sent if a.kind == Kind.MESSAGE)
    assert up >= sum(int(r.simulator_only.bytes_up[0] * 3) for r in reports)


SCAFFOLD = CATALOGUE["scaffold"]


def test_a_killed_coordinator_goes_on_and_ends_the_rounds_of_its_sites(tmp_path):
    """It dies when the state is on its disk, and sites do not have theirs yet."""
    meeting = Meeting(SCAFFOLD, tmp_path)
    state, _ = meeting.play(2)
    meeting.start_coordinator()
    for client in (1, 3):
        meeting.start_site(client)
    state, _ = meeting.play(2, state)
    close(state.server, meeting.simulated(4)[0].server)
    meeting.coordinator.end_rounds(4)
    sites = [site._part.folder / "state" for site in meeting.sites.values()]
    assert all([*folder.iterdir()][0].name == "round_00000004.npz" for folder in sites)


def test_a_round_that_was_not_saved_is_asked_for_again_and_counts_once(tmp_path):
    meeting = Meeting(SCAFFOLD, tmp_path)
    state, _ = meeting.play(2)
    meeting.play(1, state)  # lost with the coordinator's process
    meeting.start_coordinator()
    before = len(meeting.sent)
    again, _ = meeting.play(2, state)
    close(again.server, meeting.simulated(4)[0].server)
    answers = {}
    for client, question, answer in kinds(meeting, Kind.MODEL):
        if question.round == 2:
            answers.setdefault(client, set()).add(answer.payload)
    assert len(meeting.sent) > before
    assert all(len(one) == 1 for one in answers.values())


def test_sites_that_do_not_answer_are_left_out_and_named(tmp_path):
    meeting = Meeting(SCAFFOLD, tmp_path)
    meeting.change = lambda client, answer: None if client == 2 else answer
    state, reports = meeting.play(3)
    shown = [report.simulator_only for report in reports]
    assert [sorted(one.clients[0][one.answered[0]]) for one in shown] == [
        [0, 1, 3, 4]
    ] * 3
    assert all(2 not in one.clients[0] for one in shown)  # nothing reached it
    assert any("hospital_2" in line and "start.sh" in line for line in meeting.lines)
    assert {q.round for c, q, _ in meeting.sent if c == 2} == {0, 1}  # more seldom
    meeting.change = lambda client, answer: answer
    state, reports = meeting.play(4, state)
    assert any(2 in report.simulator_only.clients[0] for report in reports)


def test_with_too_few_sites_nothing_is_released(tmp_path):
    rules = Rules(seconds=1, smallest=4, attempts=3, pause=0.0)
    meeting = Meeting(SCAFFOLD, tmp_path, rules=rules)
    meeting.change = lambda client, answer: None if client > 2 else answer
    with pytest.raises(TooFew, match="4 sites in round 1, got 3"):
        meeting.play(1)
    assert len({q.payload for _, q, _ in kinds(meeting, Kind.MODEL)}) == 1
    for name, value in {"attempts": 0, "smallest": 0, "seconds": 0.0}.items():
        with pytest.raises(ValueError, match=name):
            meeting.start_coordinator(rules=rules._replace(**{name: value}))


COHORTS = {"poisson": (engine.poisson(5, 3.0), 3), "everyone": (engine.everyone(5), 5)}


@pytest.mark.slow
@pytest.mark.parametrize("name", some_fast(COHORTS, ["poisson"]))
def test_noise_hides_who_takes_part(name, tmp_path):
    """A client whose message counts as zero is there or not: all else is equal."""
    sampler, expected = COHORTS[name]
    guard = mechanism.central(
        clipping.clip(1.0), noise_multiplier=1.0, denominator=expected
    )
    algorithm, states = CATALOGUE["scaffold"]._replace(mechanism=guard), []
    for lost in (False, True):
        one = Meeting(algorithm, tmp_path / str(lost))
        one.sampler, one.data = sampler, one.data.at[4].set(jnp.nan)
        one.start_coordinator()
        one.change = lambda client, up, lost=lost: None if lost and client == 4 else up
        states.append(one.play(4)[0].server)
        told = {tuple(q.notes["counts"]) for _, q, _ in kinds(one, Kind.MODEL)}
        assert told == {(expected, expected, 5.0)}
    close(states[0].params, states[1].params, 0)
    close(states[0].params, one.simulated(4)[0].server.params)


def _nothing(guard):
    """Returns an encoding of zeros: what is released is the noise of the first sum."""
    return lambda state, exchange, message, keys: guard.encode(
        state, exchange, jax.tree.map(jnp.zeros_like, message), keys
    )


def test_a_private_round_of_a_killed_coordinator_releases_nothing_more(tmp_path):
    """It counts, and its noise is another: the difference would show a sum."""
    guard = mechanism.central(clipping.clip(1.0), noise_multiplier=1.0, denominator=5)
    algorithm = CATALOGUE["fedavg"]._replace(mechanism=guard)
    meeting = Meeting(algorithm, tmp_path)
    begun = meeting.start()
    released, _ = meeting.play(1, begun)
    meeting.start_coordinator()
    before = len(meeting.sent)
    again, reports = meeting.play(1, begun)
    assert len(meeting.sent) == before
    assert not reports[0].simulator_only.answered.any()
    noise = jax.tree.map(jnp.subtract, again.server.params, begun.server.params)
    assert all(float(jnp.abs(one).max()) > 0.05 for one in jax.tree.leaves(noise))
    close(meeting.simulated(1)[0].server.params, released.server.params)
    algorithm = algorithm._replace(mechanism=guard._replace(encode=_nothing(guard)))
    first = Meeting(algorithm, tmp_path / "silent").play(1)[0].server.params
    assert float(jnp.abs(first["w"] - again.server.params["w"]).max()) > 0.05
    meeting.play(1, again)  # later rounds go on
    assert len(meeting.sent) > before


def test_secret_noise_is_another_for_another_sum(tmp_path):
    guard = mechanism.central(clipping.clip(1.0), noise_multiplier=1.0, denominator=5)
    algorithm = CATALOGUE["fedavg"]._replace(mechanism=guard)
    params = []
    for name, value in {"one": 1.0, "same": 1.0, "other": 1.0 + 1e-3}.items():
        meeting = Meeting(algorithm, tmp_path / name)
        meeting.start_coordinator(secret=True)
        meeting.data = meeting.data * value
        params.append(meeting.play(1)[0].server.params)
    close(params[0], params[1], 0)
    assert float(jnp.abs(params[0]["w"] - params[2]["w"]).max()) > 0.05
