"""Who takes part in a round: what sites are told of it, and how it counts."""

import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.network import frames
from fl_sketch.network.coordinator import Rules
from fl_sketch.network.frames import Kind
from fl_sketch.network.round_report import Asked
from fl_sketch.privacy import clipping, mechanism
from tests.network.meeting import Meeting, close
from tests.quadratics import CATALOGUE

pytestmark = pytest.mark.slow
COHORTS = {"poisson": (engine.poisson(5, 3.0), 3), "everyone": (engine.everyone(5), 5)}


def met(folder, name, *, lost):
    """Returns a private meeting whose last client sends zeros, or is `lost`."""
    sampler, expected = COHORTS[name]
    guard = mechanism.central(
        clipping.clip(1.0), noise_multiplier=1.0, denominator=expected
    )
    one = Meeting(CATALOGUE["scaffold"]._replace(mechanism=guard), folder)
    one.sampler, one.data = sampler, one.data.at[4].set(jnp.nan)
    one.coordinator = one.new_coordinator()

    def change(client, up):
        message = frames.read(up, 2**30).kind == Kind.MESSAGE
        return None if lost and client == 4 and message else up

    one.change = change
    return one


@pytest.mark.parametrize("name", COHORTS)
def test_noise_hides_who_takes_part(name, tmp_path):
    """A client whose message counts as zero is there or not: all else is equal."""
    there, lost = (met(tmp_path / str(w), name, lost=w) for w in (False, True))
    states = [one.play(4)[0].server for one in (there, lost)]
    close(states[0].params, states[1].params, 0)
    close(states[0].memory, states[1].memory, 0)
    close(states[0].params, there.simulated(4)[0].server.params)
    told = {
        tuple(frames.read(down, 2**30).notes["counts"])
        for _, down, _ in there.sent
        if "counts" in frames.read(down, 2**30).notes
    }
    assert told == {(COHORTS[name][1], COHORTS[name][1], 5.0)}


def test_a_fixed_denominator_stays_whoever_answers():
    ids = np.arange(5, dtype=np.int32)
    for size in (3, 4):
        weights = (ids < size).astype(np.float32)
        asked = Asked(ids, weights, np.float32(3), np.float32(5), fixed=True)
        assert asked.among(range(size - 1)) == (3, size - 1, 5)


def test_a_run_goes_on_after_a_cohort_smaller_than_the_smallest(tmp_path):
    rules = Rules(seconds=1, smallest=2, attempts=3, pause=0.0)
    one = Meeting(CATALOGUE["fedavg"], tmp_path, rules=rules)
    one.sampler = engine.poisson(5, 2.0)
    one.coordinator = one.new_coordinator()
    sizes = [int((one.coordinator.asked(n).weights > 0).sum()) for n in range(6)]
    assert min(sizes) < 2 <= max(sizes)
    _, reports = one.play(6)
    answered = [int(report.simulator_only.answered.sum()) for report in reports]
    assert answered == [size if size >= 2 else 0 for size in sizes]
