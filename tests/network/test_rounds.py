"""Rounds over bytes are those of the simulator, for every shape of algorithm."""

import jax
import pytest

from fl_sketch.core.wire import byte_count
from fl_sketch.engine import costs, ledger
from fl_sketch.network import frames
from fl_sketch.network.frames import Kind
from tests.network.meeting import Meeting, close
from tests.quadratics import CATALOGUE, PARAMS

ROUNDS = 5
SLOW = {"clipped_safl", "sketched_down", "fedprox", "quantised"}  # shapes seen before


def kinds(meeting, kind):
    """Returns the payloads of the frames of a kind, up or down."""
    for client, down, up in meeting.sent:
        for data in (down, up):
            frame = frames.read(data, 2**30)
            if frame.kind == kind:
                yield client, frame


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - SLOW))
def test_rounds_are_those_of_the_simulator(name, tmp_path):
    cohort = None if name == "onebit_adam" else 3
    meeting = Meeting(CATALOGUE[name], tmp_path, cohort=cohort)
    state, reports = meeting.play(ROUNDS)
    expected, simulated = meeting.simulated(ROUNDS)
    close(state.server.params, expected.server.params)
    close(state.server.memory, expected.server.memory, 1e-5)
    assert not meeting.lines
    for ours, theirs in zip(reports, simulated, strict=True):
        ours, theirs = ours.simulator_only, theirs.simulator_only
        assert (ours.clients[0] == theirs.clients).all()
        assert (ours.answered[0] == theirs.answered).all()
        assert ours.bytes_up[0] == byte_count(theirs.bytes_up)
        close(ours.diagnostics["loss"][0], theirs.diagnostics["loss"], 1e-4)
    up = sum(len(frame.payload) for _, frame in kinds(meeting, Kind.MESSAGE))
    assert up == sum(int(r.simulator_only.bytes_up[0] * 3) for r in reports) or (
        cohort is None
    )


def down(meeting):
    """Returns the payload bytes that sites received."""
    kinds_down = Kind.MODEL, Kind.MEAN, Kind.END
    found = (len(one.payload) for kind in kinds_down for _, one in kinds(meeting, kind))
    return sum(found)


def in_the_ledger(meeting, reports, download):
    """Returns the bytes that clients received by the ledger."""
    prices = costs.prices(
        meeting.algorithm, PARAMS, meeting.talk.traffic, download=download, rounds=9
    )
    book = ledger.empty(5)
    for number, report in enumerate(reports):
        shown = jax.tree.map(lambda leaf: leaf[0], report.simulator_only)
        ledger.record(book, prices, number, shown)
    return int(book.down.sum())


FOLLOWED = ["fedavg", "heaprix", "safl", "ef21", "scaffold", "marina"]


@pytest.mark.parametrize("name", FOLLOWED)
def test_sites_that_follow_get_the_same_model_and_the_bytes_of_the_ledger(
    name, tmp_path
):
    meeting = Meeting(CATALOGUE[name], tmp_path, cohort=3, follows=True)
    state, reports = meeting.play(ROUNDS + 3)
    expected, _ = meeting.simulated(ROUNDS + 3)
    close(state.server.params, expected.server.params)
    assert not meeting.lines
    assert down(meeting) == in_the_ledger(meeting, reports, "messages")
    plain = Meeting(CATALOGUE[name], tmp_path / "plain", cohort=3)
    plain.play(ROUNDS + 3)
    assert down(plain) == in_the_ledger(plain, reports, "model")
