"""Two processes do what one does, stop together, and survive each other's death."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import time

import numpy as np
import pytest

from fl_sketch.workdir.folder import Workdir
from tests.launch.test_train import arguments, saved, wait_for_rounds
from tests.launching import Started, launch
from tests.run.configs import table

pytestmark = pytest.mark.slow

KEYS = (
    "--config.rounds=200",
    "--config.eval_every=100",
    "--config.checkpoint_every=5",
    "--config.model.name=logistic",
    "--config.sketch.heavy=3",  # which safl does not read
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start():
    """Starts both processes of a run in a folder; whoever is left is killed."""
    with contextlib.ExitStack() as left:

        def both(folder, flags=((), ()), port=0, keys=KEYS):
            port = port or free_port()
            cores = sorted(os.sched_getaffinity(0))
            return [
                left.enter_context(
                    Started(
                        "-m",
                        *arguments(folder, *keys),
                        *flags[number],
                        f"--coordinator=localhost:{port}",
                        "--num_processes=2",
                        f"--process_id={number}",
                        cores={cores[number % len(cores)]},  # a device each
                    )
                )
                for number in range(2)
            ]

        yield both


INTEGERS = (
    "--config.rounds=6",
    "--config.eval_every=3",
    "--config.model.name=logistic",
    "--config.data.clients=200",
    "--config.cohort.size=30",
    "--config.privacy.bound=normalise",
    "--config.privacy.relation=replace_one",
    "--config.privacy.noise=skellam",
    "--config.privacy.bits=16",
    "--config.privacy.target_epsilon=8",
    "--config.privacy.randomness=seed",
)


def ends(command, seconds=120):
    code = command.wait(seconds)
    return code, *command.said()


def last_words(command, seconds=20):
    """Returns the errors of a command that has ended, and of who speaks after it."""
    until = time.monotonic() + seconds
    while "Start the same command again" not in (errors := command.said()[1]):
        assert time.monotonic() < until, errors
        time.sleep(0.1)
    return errors


def test_sums_of_integers_are_those_of_one_process_to_the_bit(start, tmp_path):
    for process in start(tmp_path / "two", keys=INTEGERS):
        code, _, errors = ends(process)
        assert code == 0, errors
    alone = launch(
        *arguments(tmp_path / "one", *INTEGERS, "--config.compute.devices=2")
    )
    assert alone.returncode == 0, alone.stderr
    one, two = (
        (tmp_path / name / "params.safetensors").read_bytes() for name in ("one", "two")
    )
    assert one == two


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
    code, *_ = ends(first, 30)
    assert code not in (0, 2)
    ends(second)
    for process in (first, second):
        said = last_words(process)
        assert said.count("Start the same command again on all machines") == 1

    # One is asked to stop; both save and stop after the same round.
    first, second = start(broken)
    wait_for_rounds(broken, first)
    second.send(signal.SIGTERM)
    (code, _, errors), (other, _, others) = ends(first), ends(second)
    assert code == other == 130
    assert "run the same command again" in errors
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


def both_end(processes, words):
    """Waits for both, of which each must end soon, with code 2 and such a line."""
    first, second = processes
    while first.runs() and second.runs():
        time.sleep(0.1)
    for process in processes:
        code, _, errors = ends(process, 15)
        lines = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert code == 2 and len(lines) == 1, errors
        assert re.search(words, lines[0]) and "Traceback" not in errors, errors


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "client.rate=0.2",
            "one client.rate in all processes, got 0.1 in process 0 an",
        ),
        (
            "checkpoint_every=7",
            "one checkpoint_every .* got 5 in process 0 and 7 in pr",
        ),
        (
            "rounds=20",
            "one rounds in all processes, got 200 in process 0 and 20 in proc",
        ),
    ],
)
def test_processes_that_were_started_unlike_end_with_one_line(
    start, tmp_path, name, words
):
    both_end(start(tmp_path, ((), (f"--config.{name}",))), words)
    assert not (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize("form", ["resident", "streamed"])
def test_other_data_in_one_process_are_noticed(start, tmp_path, form):
    for seed, place in enumerate(("one", "two")):
        (tmp_path / place).mkdir()
        table(tmp_path / place / "own.npz", seed)
    keys = (*KEYS, "--config.data.name=npz/own", "--config.data.clients=6",
            "--config.cohort.size=4", f"--config.compute.data={form}")  # fmt: skip
    flags = [(f"--data_dir={tmp_path / place}",) for place in ("one", "two")]
    both_end(
        start(tmp_path / "run", flags, keys=keys), "one data in train_inputs in all"
    )


def test_an_error_of_one_process_ends_all_with_its_line(start, tmp_path):
    keys = (*KEYS, "--config.data.name=npz/own", "--config.data.clients=6",
            "--config.cohort.size=4")  # fmt: skip
    (tmp_path / "one").mkdir()
    (tmp_path / "none").mkdir()
    table(tmp_path / "one" / "own.npz", 0)
    flags = [(f"--data_dir={tmp_path / place}",) for place in ("one", "none")]
    both_end(
        start(tmp_path / "run", flags, keys=keys),
        "none/own.npz or the folder .* with data.name",
    )

    with Workdir(tmp_path / "used", {"rounds": 1}):
        both_end(start(tmp_path / "used"), "a workdir that no process uses")


OWN = """
import time

import jax


def data(*_):
    if jax.process_index():
        raise KeyboardInterrupt
    time.sleep(60)
"""


def test_who_is_interrupted_ends_all(start, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    keys = (*KEYS, f"--config.data.name={tmp_path}/own.py:data")
    first, second = map(ends, start(tmp_path / "run", keys=keys))
    assert (first[0], second[0]) == (2, 130)
    line = "interrupted; results that were saved before are kept\n"
    assert first[2].endswith(f"error: process 1: {line}")
    assert second[2].endswith(f"error: {line}")


def test_a_port_in_use_is_said_before_anything_else(tmp_path):
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        flags = (f"--coordinator=localhost:{other.getsockname()[1]}",
                 "--num_processes=2", "--process_id=0")  # fmt: skip
        done = launch(*arguments(tmp_path, *KEYS, *flags))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "a free port of the machine of process 0" in done.stderr


def test_the_coordinator_listens_where_it_was_told_to(start, tmp_path):
    port = free_port()
    processes = start(tmp_path, port=port)
    wait_for_rounds(tmp_path, processes[0])
    hosts = set()
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, kind, *_ = line.split()
            host, _, own = local.rpartition(":")
            if kind == "0A" and int(own, 16) == port:
                hosts.add(host)
    # 127.0.0.1, as such and in IPv6, and ::1: of this machine alone.
    own = {"0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000"}
    assert hosts and hosts <= own
