"""A forecast from rounds of few clients says what a whole round takes."""

import json
import types

import jax
import pytest

from fl_sketch import engine
from fl_sketch.core import files
from fl_sketch.engine.rounds import compile_rounds
from fl_sketch.experiments import forecast, machine
from fl_sketch.experiments.bench import extrapolation
from fl_sketch.run.setup import prepare
from fl_sketch.workdir import secrets
from tests.run.configs import NOISY, config_with

FAST = machine.Speed(1e11, 1e10)
BASE, TURN, PER_TURN = 0.002, 0.004, 1000


def built(clients, at_once=4):
    """Returns a round that takes a base and as many turns as its clients need."""
    turns = -(-clients // at_once)
    memory = types.SimpleNamespace(
        temp_size_in_bytes=500 + PER_TURN * turns,
        output_size_in_bytes=30,
        alias_size_in_bytes=10,
    )
    program = types.SimpleNamespace(memory_analysis=lambda: memory)
    return program, lambda count: clock.pass_by(count * (BASE + TURN * turns))


class Clock:
    now = 0.0

    def pass_by(self, seconds):
        self.now += seconds


clock = Clock()


@pytest.mark.parametrize("places", [3, 7, 13, 17, 400])
def test_what_grows_with_clients_is_extrapolated(monkeypatch, places):
    monkeypatch.setattr(extrapolation.time, "perf_counter", lambda: clock.now)
    cost, turns = extrapolation.extrapolated(built, places, 4), -(-places // 4)
    assert cost.seconds == pytest.approx(BASE + TURN * turns)
    assert cost.temporaries == 520 + PER_TURN * turns
    assert cost.turn == (None if turns < 4 else pytest.approx(TURN))


SCAFFOLD = {"algorithm": "scaffold"}
STREAMED = {"compute__data": "streamed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"cohort__size": 12},
        SCAFFOLD | {"cohort__size": 10},
        SCAFFOLD | {"compute__clients": "host", "cohort__size": 9},
        STREAMED | {"cohort__size": 10},
        NOISY | {"algorithm": "dp_fedavg", "privacy__threshold": 1.0},
        {"algorithm": "fedsketch", "sketch__query": "heaprix", "cohort__size": 20},
    ],
)
def test_the_memory_of_a_run_is_that_of_its_program(monkeypatch, changes):
    monkeypatch.setattr(machine, "speed", lambda mesh: FAST)
    monkeypatch.setattr(extrapolation, "BLOCK", 0.001)
    setup = prepare(config_with(**changes))
    found = forecast.of_setup(setup)
    roots = secrets.roots(0, setup.secret(), setup.same)
    state = jax.eval_shape(lambda key: setup.start(setup.numbers, key), roots)
    _, program = compile_rounds(
        setup.play(setup.numbers),
        setup.mesh,
        state=setup.placed(state),
        key=roots,
        data=setup.data(0),
    )
    memory = program.memory_analysis()
    assert found.cost.temporaries == pytest.approx(
        extrapolation.temporaries(program), rel=0.05, abs=2e4
    )
    arguments = found.state + found.data
    if "compute__data" not in changes:
        assert arguments == pytest.approx(memory.argument_size_in_bytes, abs=300)
    assert found.cost.seconds > 0
    assert found.evaluation > 0
    assert any("at least " in line for line in forecast.lines(setup))


def test_the_speed_of_a_machine_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mesh = engine.mesh_over(jax.devices()[:2])
    monkeypatch.setattr(machine, "measured", lambda mesh: FAST)
    assert machine.speed(mesh) == FAST
    monkeypatch.setattr(machine, "measured", lambda mesh: FAST._replace(bytes=1.0))
    assert machine.speed(mesh) == FAST
    assert machine.speed(engine.mesh_over(jax.devices()[:1])).bytes == 1.0
    kept = files.user_cache() / machine.FILE
    assert len(json.loads(kept.read_text())) == 2
    for damaged in ("{", "[]", '{"a": {"operations": 1}}'):
        kept.write_text(damaged)
        assert machine.speed(mesh).bytes == 1.0


@pytest.mark.slow
def test_the_speed_of_a_machine_is_measured():
    mesh = engine.mesh_over(jax.devices()[:1])
    found = machine.measured(mesh)
    assert 1e8 < found.operations < 1e17
    assert 1e7 < found.bytes < 1e15
