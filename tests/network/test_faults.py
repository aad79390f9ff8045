"""What goes wrong at a site or on the way costs that site's round, and no more."""

import numpy as np
import pytest

from fl_sketch.network import frames
from fl_sketch.network.coordinator import Rules, TooFew
from fl_sketch.network.frames import Kind
from tests.network.meeting import Meeting, close
from tests.quadratics import CATALOGUE

STATEFUL, PLAIN, TWICE = "ef21", "fedavg", "heaprix"
BAD = 2  # the site that fails


def meet(tmp_path, name=STATEFUL, **options):
    return Meeting(CATALOGUE[name], tmp_path, **options)


def said(meeting, text):
    return [line for line in meeting.lines if text in line]


def message(answer):
    """Returns the message in an answer; None: it is of another kind."""
    frame = frames.read(answer, 2**20)
    return frame if frame.kind == Kind.MESSAGE else None


def with_payload(frame, payload):
    return frames.write(frame._replace(payload=payload))


def nothing(_frame, _answer):
    return None


def noise(_frame, _answer):
    return bytes(range(200)) * 3


def flipped(_frame, answer):
    return answer[:-30] + bytes([answer[-30] ^ 1]) + answer[-29:]


def cut(_frame, answer):
    return answer[:-40]


def longer(frame, _answer):
    return with_payload(frame, frame.payload + b"more")


def not_a_number(frame, _answer):
    words = np.frombuffer(frame.payload, "<u4").copy()
    words[0] = 0x7FC00000
    return with_payload(frame, words.tobytes())


def older(frame, _answer):
    return frames.write(frame._replace(round=frame.round - 1))


def of_another(frame, _answer):
    return frames.write(frame._replace(site=frame.site + 1))


def other_code(frame, _answer):
    return frames.write(frame._replace(program=bytes(16)))


FAULTS = [
    nothing,
    noise,
    flipped,
    cut,
    longer,
    not_a_number,
    older,
    of_another,
    other_code,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_round_is_done_without_a_site_that_fails(fault, tmp_path):
    meeting = meet(tmp_path, PLAIN)

    def change(client, answer):
        frame = message(answer)
        if client == BAD and frame and frame.round == 1:
            return fault(frame, answer)
        return answer

    meeting.change = change
    state, reports = meeting.play(3)
    answered = [r.simulator_only.answered[0].tolist() for r in reports]
    assert answered[1] == [one != BAD for one in range(5)]
    assert all(answered[0]) and all(answered[2])
    assert len(said(meeting, f"site {BAD}")) == 1
    assert all(
        np.isfinite(one).all() for one in map(np.asarray, state.server.params.values())
    )


def mean_of_memories(meeting):
    """Returns the mean of what five sites remember."""
    memories = []
    for client in range(5):
        part = meeting.sites[client]._part
        memories.append(meeting.sites[client]._client(part, None).memory[0])
    return {name: sum(m[name] for m in memories) / 5 for name in ("w", "b")}


def test_what_a_failing_site_would_have_sent_is_not_in_its_memory(tmp_path):
    """EF21 needs it: the server's memory is the sum of what the sites remember."""
    meeting = meet(tmp_path)

    def change(client, answer):
        frame = message(answer)
        return None if client == BAD and frame and frame.round == 1 else answer

    meeting.change = change
    state, _ = meeting.play(4)
    close(state.server.memory[0], mean_of_memories(meeting), 1e-5)


def test_a_site_away_for_rounds_keeps_what_counted_and_is_asked_seldom(tmp_path):
    """It dies after its message of round 1 counted, and comes back in round 5."""
    meeting, wanted = meet(tmp_path), []

    def change(client, answer):
        number = int(meeting.coordinator._silence._number)
        frame = frames.read(answer, 2**20)
        away = 2 <= number < 5 or (number == 1 and frame.kind == Kind.DONE)
        if client == BAD and away:
            wanted.append(number)
            return None
        return answer

    meeting.change = change
    state, reports = meeting.play(9)
    answered = [bool(r.simulator_only.answered[0][BAD]) for r in reports]
    assert answered[:2] == [True, True] and not any(answered[2:5]) and answered[-1]
    assert len(wanted) <= 4
    close(state.server.memory[0], mean_of_memories(meeting), 1e-5)


def test_a_frame_that_comes_twice_gets_the_same_answer(tmp_path):
    meeting = meet(tmp_path)
    receive = meeting.send

    def twice(data, seconds):
        first = receive(data, seconds)
        assert receive(data, seconds) == first
        return first

    meeting.coordinator._send = twice
    state, _ = meeting.play(3)
    whole, _ = meet(tmp_path / "whole").play(3)
    close(state.server.params, whole.server.params, 0)


@pytest.mark.parametrize("name", [STATEFUL, TWICE, "heaprix_gate"])
@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.DONE])
def test_a_site_that_dies_and_comes_back_loses_nothing(name, kind, tmp_path):
    """It dies after its answer was made, in round 1, and starts again at once."""
    whole, _ = meet(tmp_path / "whole", name).play(4)
    meeting, died = meet(tmp_path / "dies", name), []

    def change(client, answer):
        frame = frames.read(answer, 2**20)
        if client == BAD and frame.kind == kind and frame.round == 1 and not died:
            died.append(client)
            meeting.start_site(client)
            return answer if kind == Kind.MESSAGE else None
        return answer

    meeting.change = change
    state, reports = meeting.play(4)
    assert died or name == TWICE
    assert all(r.simulator_only.answered.all() for r in reports), meeting.lines
    close(state.server.params, whole.server.params, 0)


@pytest.mark.parametrize("name", [STATEFUL, "scaffold"])
def test_sites_that_follow_go_on_after_any_process_died(name, tmp_path):
    """A site dies in round 2, then the coordinator in round 4."""
    whole, _ = meet(tmp_path / "whole", name, follows=True).play(7)
    meeting, died = meet(tmp_path / "dies", name, follows=True), []

    def change(client, answer):
        frame = frames.read(answer, 2**20)
        if client == BAD and frame.round == 2 and not died:
            died.append(client)
            meeting.start_site(client)
        return answer

    meeting.change = change
    saved, _ = meeting.play(3)
    meeting.coordinator._back = lambda: (0, 3)
    meeting.play(2, saved)  # lost
    meeting.coordinator = meeting.new_coordinator(back=(0, 3))
    state, reports = meeting.play(4, saved)
    assert died and all(r.simulator_only.answered.all() for r in reports)
    close(state.server.params, whole.server.params, 0)


def test_a_coordinator_that_is_killed_goes_on_from_its_checkpoint(tmp_path):
    whole, _ = meet(tmp_path / "whole").play(6)
    meeting = meet(tmp_path / "killed")
    saved, _ = meeting.play(2)
    meeting.coordinator._back = lambda: (0, 2)
    meeting.play(3, saved)  # lost
    meeting.coordinator = meeting.new_coordinator(back=(0, 2))
    state, _ = meeting.play(4, saved)
    close(state.server.params, whole.server.params, 0)


def test_an_end_that_is_lost_is_said_again_after_the_coordinator_was_killed(tmp_path):
    """A site that keeps a state is else in the lost round for the rest of the run."""
    whole, _ = meet(tmp_path / "whole").play(5)
    meeting = meet(tmp_path / "killed")

    lose(meeting, number=1)
    saved, _ = meeting.play(2)
    meeting.coordinator = meeting.new_coordinator(back=(0, 2))
    state, reports = meeting.play(3, saved)
    assert all(r.simulator_only.answered.all() for r in reports), meeting.lines
    close(state.server.params, whole.server.params, 0)
    assert not [*(tmp_path / "killed" / "ends").iterdir()]


def test_an_end_of_a_round_that_was_lost_is_not_said(tmp_path):
    whole, _ = meet(tmp_path / "whole").play(5)
    meeting = meet(tmp_path / "killed")
    saved, _ = meeting.play(2)
    meeting.coordinator._back = lambda: (0, 2)
    lose(meeting, number=3)
    meeting.play(2, saved)  # lost, with an end that a site did not hear
    meeting.coordinator = meeting.new_coordinator(back=(0, 2))
    state, reports = meeting.play(3, saved)
    assert all(r.simulator_only.answered.all() for r in reports), meeting.lines
    close(state.server.params, whole.server.params, 0)


def lose(meeting, number):
    """Loses the frame that ends a round of a site, each time that it is sent."""
    coordinator, send = meeting.coordinator, meeting.send

    def lost(client, data):
        frame = frames.read(data, 2**20)
        return (client, frame.kind, frame.round) == (BAD, Kind.END, number)

    def losing(data, seconds):
        here = {one: down for one, down in data.items() if not lost(one, down)}
        return send(here, seconds)

    coordinator._send = losing


def test_a_site_with_other_programs_is_left_out_in_one_line(tmp_path):
    meeting = meet(tmp_path, PLAIN)

    def change(client, answer):
        frame = frames.read(answer, 2**20)
        if client == BAD and frame.kind == Kind.HELLO:
            return frames.write(frame._replace(program=bytes(16)))
        return answer

    meeting.change = change
    _, (report, _) = meeting.play(2)
    assert report.simulator_only.answered[0].tolist() == [n != BAD for n in range(5)]
    (line, *_) = said(meeting, f"site {BAD}")
    assert line.startswith(f"site {BAD} runs other programs: ") and "jax " in line


def test_a_network_that_is_cut_costs_nothing(tmp_path):
    whole, _ = meet(tmp_path / "whole").play(3)
    meeting, cuts = meet(tmp_path / "cut", rules=Rules(1, 3, 5, 0.0)), []

    def change(client, answer):
        frame = message(answer)
        if frame and frame.round == 1 and len(cuts) < 8:
            cuts.append(client)
            return None
        return answer

    meeting.change = change
    state, _ = meeting.play(3)
    assert said(meeting, "nothing is released")
    close(state.server.params, whole.server.params, 0)


def test_too_few_sites_end_a_run_in_one_line(tmp_path):
    meeting = meet(tmp_path, PLAIN, rules=Rules(1, 3, 2, 0.0))
    meeting.change = lambda client, answer: answer if client > 2 else None
    with pytest.raises(TooFew, match="Expected 3 sites in round 1, got 2"):
        meeting.play(1)


def test_sites_refuse_frames_that_are_not_for_them(tmp_path):
    meeting = meet(tmp_path, PLAIN)
    meeting.play(3)
    client, down, _ = next(
        one for one in meeting.sent if frames.read(one[1], 2**20).kind == Kind.MODEL
    )
    frame = frames.read(down, 2**20)
    for changes, what in [
        ({}, "Expected round 2 or a later one, got 0"),
        ({"round": 9, "site": client + 1}, "Expected a frame for site"),
        ({"round": 9, "program": bytes(16)}, "same programs"),
        ({"round": 9, "kind": Kind.DONE}, "frame of a coordinator"),
    ]:
        answer = meeting.sites[client].receive(frames.write(frame._replace(**changes)))
        read = frames.read(answer, 2**20)
        assert read.kind == Kind.REFUSED and what in read.notes["reason"]


def test_a_frame_that_claims_much_is_refused_by_its_length():
    whole = frames.write(frames.Frame(Kind.MESSAGE, payload=b"1234"))
    claims = bytearray(whole)
    claims[frames.HEADER.size - 8 : frames.HEADER.size] = (2**60).to_bytes(8, "little")
    with pytest.raises(ValueError, match="claims 0 and 1152921504606846976"):
        frames.read(bytes(claims), 2**62)
    with pytest.raises(ValueError, match="at most 65536 bytes of notes and 3"):
        frames.read(whole, 3)
