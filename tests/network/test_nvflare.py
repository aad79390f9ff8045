"""NVFlare's part: kits, and jobs that end and go on."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys

import pytest

from fl_sketch.network import job, policy, secure_sum
from fl_sketch.run import run
from tests.network.sites import five, furthest
from tests.refusals import refused
from tests.run.configs import quiet, table_in

if importlib.util.find_spec("nvflare") is None:
    pytest.skip("NVFlare carries the messages", allow_module_level=True)

from fl_sketch.network import nvflare
from tests.network import processes

NAMES = [f"hospital_{one}" for one in range(5)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("provisioner") / "KITS"
    return folder, nvflare.make_kits(folder, NAMES[:2], "coordinator.example")


def test_kits_can_be_moved_and_their_sites_allow_little(made, tmp_path):
    folder, kits = made
    identities = []
    for name, place in {"server": kits.server, **kits.sites}.items():
        moved = tmp_path / name
        shutil.copytree(place, moved)
        resources = (moved / "local" / "resources.json").read_text()
        assert str(folder) not in resources and "/tmp/nvflare" not in resources
        said = json.loads(resources)
        assert said["class_allow_list"] == nvflare.CLASSES
        assert said["allow_log_streaming"] is False
        if name != "server":
            identities.append(secure_sum.read_identity(moved / "local"))
            allowed = policy.read(moved / "local" / policy.FILE)
            assert (allowed.delta, allowed.smallest_sum) == (1e-5, 3)
            assert not allowed.capped
            rights = json.loads((moved / "local" / "authorization.json").read_text())
            (own,) = rights["permissions"].values()
            assert own["byoc"] == own["shell_commands"] == "none"
    assert [one.name for one in identities] == NAMES[:2]
    with refused(folder):
        nvflare.make_kits(folder, NAMES[:2], "coordinator.example")


@pytest.mark.parametrize("names", ["", "a,a", "server", "a b", "../a", "-a"])
def test_what_cannot_be_the_name_of_a_site_is_refused(names, tmp_path):
    with refused("sites"):
        nvflare.kits_in(tmp_path, names.split(","), "host")


class Job:
    """A job as NVFlare shows it, which writes a line whenever it is looked at."""

    def __init__(self, folder, lines, back=()):
        self.folder, self.lines, self.back = folder, [*lines], back
        self.asked = []

    def status(self):
        if self.lines:
            with open(self.folder / nvflare.LINES, "ab") as file:
                file.write(self.lines.pop(0))
            return "RUNNING"
        return "FINISHED:ABORTED"

    def without(self, sites):
        self.asked.append(sites)
        return [one for one in sites if one in self.back]

    def abort(self):
        pass


def line(kind, text):
    return (json.dumps([kind, text], ensure_ascii=False) + "\n").encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(nvflare, "PAUSE", 0.0)
    monkeypatch.setattr(nvflare, "LOOK", 0.0)


def test_lines_are_printed_as_they_come(tmp_path):
    """Also where a look falls into the middle of a letter."""
    whole = line("line", "é" * 5) + line("line", "two") + line("done", "")
    cut = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    printed = []
    assert nvflare.follow(tmp_path, Job(tmp_path, cut), printed.append) == ""
    assert printed == ["é" * 5, "two"]


def test_a_job_that_fails_says_why_and_one_that_is_ended_goes_on(tmp_path):
    with refused("too few"):
        nvflare.follow(tmp_path, Job(tmp_path, [line("failed", "too few")]), quiet)
    (tmp_path / nvflare.LINES).unlink()
    ended = Job(tmp_path, [line("line", "one")])
    assert "ABORTED" in nvflare.follow(tmp_path, ended, quiet)


def test_a_site_that_is_back_ends_the_job_between_two_rounds(tmp_path):
    (tmp_path / nvflare.ABSENT).write_text(json.dumps(["a", "b"]))
    lines = [line("line", "one")] * 3 + [line("again", "the job is ended")]
    one = Job(tmp_path, lines, back=["b"])
    assert nvflare.follow(tmp_path, one, quiet).startswith("b was started again")
    assert (tmp_path / nvflare.STOP).exists() and one.asked == [["a", "b"]]


def test_a_job_that_ends_without_a_round_is_submitted_so_often(tmp_path, monkeypatch):
    submitted = []

    def submit(*about):
        submitted.append(about)
        return Job(tmp_path / "network", [])

    monkeypatch.setattr(nvflare, "_submitted", submit)
    monkeypatch.setattr(nvflare.job, "of_coordinator", lambda *_: None)
    config = five()
    splits = job.test_data(config, None)
    with refused("keep the job"):
        nvflare.play(
            config, splits, tmp_path, tmp_path, NAMES, rules=nvflare.Rules(), say=quiet
        )
    assert len(submitted) == nvflare.RESTARTS


@pytest.mark.slow
def test_processes_that_are_killed_leave_the_run_of_one_program(tmp_path):
    """Three sites over loopback with TLS: one is killed, and then the coordinator."""
    keys = {"model__name": "logistic", "cohort__sampling": "everyone", "rounds": 40}
    keys |= {"data__partition": "dirichlet", "eval_every": 10, "data__clients": 3}
    names = NAMES[:3]
    job.split(five(**keys), None, tmp_path / "sites", names)

    def begin(kits, folder):
        flags = [f"--config.{k.replace('__', '.')}={x}" for k, x in keys.items()]
        command = [sys.executable, "-m", "launch.network"]
        command += ["--config=configs/default.py", *flags, f"--workdir={folder}"]
        command += [f"--kits={kits.admin.parents[2]}", f"--sites={','.join(names)}"]
        command += ["--timeout=10", "--smallest=3", "--attempts=60"]
        return subprocess.Popen(
            command,
            cwd=processes.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with processes.federation(tmp_path, names) as kits:
        for name, kit in kits.sites.items():
            data = str(tmp_path / "sites" / name / job.DATA)
            policy.write(kit / "local" / policy.FILE, {"data": data})
        folder = tmp_path / "run"
        one = begin(kits, folder)
        processes.until(lambda: (folder / "metrics.csv").exists())
        processes.kill(kits.sites[names[1]])
        again = processes.start(kits.sites[names[1]])
        rows = len(table_in(folder))
        processes.until(lambda: len(table_in(folder)) > rows)
        one.send_signal(signal.SIGINT)
        printed = one.communicate(timeout=120)[0]
        assert f"{names[1]} was started again and is back" in printed
        printed += begin(kits, folder).communicate(timeout=300)[0]
        assert "resuming after round" in printed and "Traceback" not in printed
    again.wait()
    run(five(**keys), str(tmp_path / "train"), say=quiet)
    assert furthest(folder, tmp_path / "train") <= 1e-6
