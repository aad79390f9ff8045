"""A server and sites as processes of this machine, over NVFlare with mutual TLS."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest

from fl_sketch.network import counted, dealing, local_sites
from fl_sketch.network import run as network
from fl_sketch.network.tap import Tap
from fl_sketch.run import run
from tests.network.sites import METHODS, five, furthest, weights_in
from tests.run.configs import quiet, read_json, table_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("nvflare") is None,
        reason="NVFlare carries the messages: pip install fl_sketch[nvflare]",
    ),
]
ROOT = pathlib.Path(__file__).parent.parent.parent
KEYS = {
    "model.name": "logistic",
    "cohort.sampling": "everyone",
    "data.partition": "dirichlet",
    "download": "model",
    "algorithm": "ef21",
    "rounds": 30,
    "eval_every": 10,
    "checkpoint_every": 10,
}
WAIT = 300  # seconds, of which a machine of its own needs a few


BEGUN: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def nothing_left():
    """Ends what a test that failed has started."""
    yield
    while BEGUN:
        process = BEGUN.pop()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def begun(folder, *flags, sites="3", **changes):
    """Starts a run, by default with three sites of its own."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    keys = [f"--config.{key}={value}" for key, value in (KEYS | keys).items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.network", "--config=configs/default.py"]
        + [f"--sites={sites}", f"--workdir={folder}", *keys, *flags],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    BEGUN.append(process)
    return process


def ended(process):
    """Returns what a run printed, when it has ended."""
    try:
        return process.communicate(timeout=WAIT)[0]
    finally:
        process.send_signal(signal.SIGTERM)  # which ends what it started
        process.communicate(timeout=60)


def until(found):
    """Waits until something is there."""
    for _ in range(10 * WAIT):
        if found():
            return
        time.sleep(0.1)
    pytest.fail("it never came")


def simulated(folder, **changes):
    """Returns the weights of the same run in one program."""
    keys = {key.replace(".", "__"): value for key, value in KEYS.items()} | changes
    run(five(**keys | {"data__clients": 3}), str(folder), say=quiet)
    return weights_in(folder)


def jobs_of(folder, name, kind=""):
    """Returns the processes that have a site's kit in their command, but its start.

    Args:
      kind: what a word of the command ends with.
    """
    kit = f"{folder}/network/kits/fl_sketch/prod_00/{name}"
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_text().split("\0")
        except OSError:
            continue
        of_kind = any(word.endswith(kind) for word in words)
        ours = of_kind and any(word.startswith(kit) for word in words)
        if ours and "bash" not in words[0]:
            found.append(int(place.name))
    return found


class Running(NamedTuple):
    """A server and five sites that run, and what passes between them.

    Nothing passes while `whole` is not set.
    """

    folder: pathlib.Path
    taps: list[Tap]
    passed: list[bytes]
    whole: threading.Event


NAMES = [f"hospital_{one}" for one in range(5)]


LENGTH = {"rounds": 20, "eval_every": 10, "checkpoint_every": 10}


def plain(summary):
    """Returns a summary without what marks the numbers of the simulator."""
    return dict(summary)


def twenty(name):
    return five(**LENGTH, **METHODS[name])


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Five sites that take part in one run after another."""
    folder = tmp_path_factory.mktemp("five")
    tells = {"names": NAMES, "tells": ["measured"]}
    dealing.deal(twenty("safl"), None, folder / "sites", **tells)
    running = Running(folder, [], [], threading.Event())
    running.whole.set()

    def seen(piece):
        running.whole.wait()
        running.passed.append(piece)

    def tapped(port):
        running.taps.append(Tap(port, seen))
        return running.taps[0].port

    with local_sites.running(folder, NAMES, tapped=tapped):
        yield running


def test_a_run_with_processes_is_that_of_one_program(running, tmp_path):
    """Of masked integers, to the bit; test_configs has others, in one process."""
    place, here = tmp_path / "network", f"--kits={running.folder}/kits"
    keys = {"algorithm": "safl"} | LENGTH | METHODS["integers"]
    printed = ended(begun(place, here, sites=",".join(NAMES), **keys))
    expected = run(twenty("integers"), str(tmp_path / "one"), say=quiet)
    assert furthest(weights_in(place), weights_in(tmp_path / "one")) == 0
    summary = plain(read_json(place / "summary.json"))
    expected = plain(expected)
    for key in ("bytes_up_total", "bytes_down_total", "rounds"):
        assert summary[key] == expected[key]
    sent = read_json(place / network.FOLDER / counted.FILE)
    assert sent["payload_up"] == summary["bytes_up_total"]
    assert sent["payload_down"] == summary["bytes_down_total"]
    assert "site " not in printed
    require_own_jobs(running)
    require_encrypted(running)


def require_own_jobs(running):
    """The server keeps jobs in its kit, where no other server starts them."""
    (kit,) = running.folder.glob("kits/fl_sketch/prod_00/localhost")
    assert str(kit) in (kit / "local" / "resources.json").read_text()
    assert [*(kit / "jobs").iterdir()]
    assert "/tmp/nvflare" not in (kit / "local" / "resources.json").read_text()


def require_encrypted(running):
    """Frames are on the wire, and none of them can be read there."""
    whole = b"".join(running.passed)
    assert len(whole) > 10**5
    for clear in (b"FLSN", b"diagnostics", b"hospital_1", b"exchange"):
        assert clear not in whole
    running.passed.clear()


def test_a_network_that_is_cut_costs_nothing(running, tmp_path):
    """Rounds wait for all sites, and none is lost or done twice."""
    length = {"rounds": 60, "eval_every": 20, "checkpoint_every": 30}
    place, keys = tmp_path / "run", {"algorithm": "fedavg"} | length
    here = f"--kits={running.folder}/kits"
    rules = ("--smallest=5", "--timeout=5", "--attempts=30")
    process = begun(place, here, *rules, sites=",".join(NAMES), **keys)
    until(lambda: (place / "metrics.csv").exists())
    running.whole.clear()
    try:
        time.sleep(3)
        rows = len(table_in(place))
        time.sleep(12)  # two attempts and more
        assert len(table_in(place)) == rows
    finally:
        running.whole.set()
    assert "nothing is released" in ended(process)
    run(five(**keys), str(tmp_path / "one"), say=quiet)
    assert furthest(weights_in(place), weights_in(tmp_path / "one")) <= 1e-4


def test_a_run_that_is_killed_goes_on(tmp_path):
    """The server, the sites and the command die at once, with SIGKILL, in a round."""
    folder, length = tmp_path / "run", {"rounds": 60, "eval_every": 60}
    process = begun(folder, **length)
    until(lambda: list((folder / "checkpoints").glob("round_*")))
    process.kill()
    for group in read_json(folder / "network" / "processes.json"):
        os.killpg(int(group), signal.SIGKILL)
    process.communicate()
    assert not (folder / "summary.json").exists()
    printed = ended(begun(folder, **length))
    assert "resuming after round" in printed
    # Sums of 60 rounds are in another order than those of one program.
    assert furthest(weights_in(folder), simulated(tmp_path / "one", **length)) <= 1e-5
    assert "already" in ended(begun(folder, **length))


def signalled(folder, name, sent):
    """Sends the processes of a site's job a signal."""
    for one in jobs_of(folder, name):
        os.kill(one, sent)


def test_a_site_that_hangs_or_is_killed_is_left_out(tmp_path):
    """One that hangs takes part again when it goes on.

    NVFlare ends the job if only a process of the job dies, and the command says so.
    """
    folder = tmp_path / "run"
    process = begun(folder, "--timeout=3", rounds=100000)

    def asked_and_answered():
        return [
            [int(row[n]) for n in ("asked", "answered")] for row in table_in(folder)
        ]

    def missed():
        """Returns how many answers have not come so far."""
        asked, answered = asked_and_answered()[-1]
        return asked - answered

    until(lambda: (folder / "metrics.csv").exists())
    signalled(folder, "site_1", signal.SIGSTOP)
    until(lambda: missed() > 0)
    signalled(folder, "site_1", signal.SIGCONT)
    until(lambda: np.diff(asked_and_answered()[-2:], axis=0).tolist() == [[30, 30]])
    before = missed()
    signalled(folder, "site_2", signal.SIGKILL)
    until(lambda: missed() > before)
    rows = len(table_in(folder))
    until(lambda: len(table_in(folder)) > rows + 2)
    assert missed() > before
    (job,) = jobs_of(folder, "site_0", "worker_process")
    os.kill(job, signal.SIGKILL)
    printed = process.communicate(timeout=WAIT)[0]
    assert process.returncode == 2 and "Expected NVFlare to keep the job" in printed
    assert "site 1 did not answer" in printed and "site 2 did not answer" in printed
    rows, process = len(table_in(folder)), begun(folder, "--timeout=3", rounds=100000)
    until(lambda: len(table_in(folder)) > rows + 2)  # the same command goes on
    kits = {*read_json(folder / "network" / "processes.json").values()}
    jobs = jobs_of(folder, "site_0", "worker_process")
    process.send_signal(signal.SIGTERM)
    assert "resuming after round" in ended(process)
    commands = [command for _, command in local_sites.processes()]
    assert jobs and not [one for one in commands if any(kit in one for kit in kits)]
