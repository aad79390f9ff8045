"""Two processes do what one does, stop together, and survive each other's death."""

import contextlib
import os
import signal
import socket

import numpy as np
import pytest

from tests.launch.test_train import arguments, saved, wait_for_rounds
from tests.launching import Started, launch

pytestmark = pytest.mark.slow

KEYS = (
    "--config.rounds=200",
    "--config.eval_every=100",
    "--config.checkpoint_every=5",
    "--config.model.name=logistic",
    "--config.sketch.heavy=3",  # which safl does not read
)


@pytest.fixture
def start():
    """Starts both processes of a run in a folder; whoever is left is killed."""
    with contextlib.ExitStack() as left:

        def both(folder):
            with socket.socket() as probe:
                probe.bind(("localhost", 0))
                port = probe.getsockname()[1]
            cores = sorted(os.sched_getaffinity(0))
            return [
                left.enter_context(
                    Started(
                        "-m",
                        *arguments(folder, *KEYS),
                        f"--coordinator=localhost:{port}",
                        "--num_processes=2",
                        f"--process_id={number}",
                        cores={cores[number % len(cores)]},  # a device each
                    )
                )
                for number in range(2)
            ]

        yield both


def ends(command, seconds=120):
    code = command.wait(seconds)
    return code, *command.said()


def test_two_processes_are_one_run(start, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    notes = []
    for process in start(whole):
        code, said, errors = ends(process)
        assert code == 0, errors
        notes.append([line for line in said.splitlines() if "note:" in line])
    # What is to be said of the config is said once.
    assert notes == [["note: safl as configured does not read sketch.heavy=3"], []]

    # One dies; the other notices, and both say how to go on.
    first, second = start(broken)
    wait_for_rounds(broken, first)
    second.send(signal.SIGKILL)
    code, _, errors = ends(first, 30)
    assert code not in (0, 2)
    assert "Start the same command again on all machines" in errors
    assert "Start the same command again" in ends(second)[2]

    # One is asked to stop; both save and stop after the same round.
    first, second = start(broken)
    wait_for_rounds(broken, first)
    second.send(signal.SIGTERM)
    (code, _, errors), (other, _, others) = ends(first), ends(second)
    assert code == other == 130
    assert "the same command goes on" in errors
    assert [e for e in errors.splitlines() if "stopped" in e] == [
        e for e in others.splitlines() if "stopped" in e
    ]

    for process in start(broken):
        code, _, errors = ends(process)
        assert code == 0, errors
    assert saved(broken) == saved(whole)

    # One process with as many devices does the same.
    alone = tmp_path / "alone"
    done = launch(*arguments(alone, *KEYS))
    assert done.returncode == 0, done.stderr
    name = "checkpoints/round_00000200.npz"
    with np.load(whole / name) as one, np.load(alone / name) as other:
        assert set(one) == set(other)
        for key in one:
            np.testing.assert_allclose(one[key], other[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--num_processes=2",), "together, got coordinator=None"),
        (
            ("--coordinator=x:1", "--num_processes=2", "--process_id=2"),
            "0 <= process_id < 2 (num_processes), got process_id=2",
        ),
        (("--coordinator=x:1", "--num_processes=0", "--process_id=0"), ">= 1"),
    ],
)
def test_half_an_address_is_refused(tmp_path, flags, words):
    done = launch(*arguments(tmp_path, *KEYS, *flags))
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1
