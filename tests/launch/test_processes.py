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

from tests.launch.test_train import arguments, wait_for_rounds
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
    whole = tmp_path / "whole"
    notes = []
    for process in start(whole):
        code, said, errors = ends(process)
        assert code == 0, errors
        notes.append([line for line in said.splitlines() if "note:" in line])
    # What is to be said of the config is said once.
    assert notes == [["note: safl as configured does not read sketch.heavy=3"], []]

    # One process with as many devices does the same.
    alone = tmp_path / "alone"
    done = launch(*arguments(alone, *KEYS))
    assert done.returncode == 0, done.stderr
    name = "checkpoints/round_00000200.npz"
    with np.load(whole / name) as one, np.load(alone / name) as other:
        assert set(one) == set(other)
        for key in one:
            np.testing.assert_allclose(one[key], other[key], rtol=1e-5, atol=1e-5)


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


def test_processes_that_were_started_unlike_end_with_one_line(start, tmp_path):
    both_end(start(tmp_path, ((), ("--config.client.rate=0.2",))), "client.rate")
    assert not (tmp_path / "metrics.csv").exists()


def test_other_data_in_one_process_are_noticed(start, tmp_path):
    for seed, place in enumerate(("one", "two")):
        (tmp_path / place).mkdir()
        table(tmp_path / place / "own.npz", seed)
    keys = (*KEYS, "--config.data.name=npz/own", "--config.data.clients=6",
            "--config.cohort.size=4")  # fmt: skip
    flags = [(f"--data_dir={tmp_path / place}",) for place in ("one", "two")]
    both_end(start(tmp_path / "run", flags, keys=keys), "train_inputs")


def test_one_dies_and_the_other_notices(start, tmp_path):
    first, second = start(tmp_path)
    wait_for_rounds(tmp_path, first)
    second.send(signal.SIGKILL)
    code, *_ = ends(first, 60)
    assert code not in (0, 2)


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
