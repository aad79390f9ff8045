"""What is wrong with a command is said in one line, before anything runs."""

import subprocess
import sys

import pytest

from launch import clone
from tests.launching import ENVIRONMENT, ROOT, launch

pytestmark = pytest.mark.slow

RUN = ("--config=configs/default.py", "--workdir=NEW")
ATTACK = ("launch.attack", *RUN)
PLAN = ("launch.plan", "--config=configs/default.py")
WRONG = [
    (("launch.quickstart", "--config.round=3"), "Did you mean 'rounds'?"),
    (("launch.train", *RUN, "--config.seed=2147483648"), "seed < 2147483648"),
    (
        ("launch.train", *RUN, f"--config.rounds={10**22}"),
        "rounds in [-2147483648, 2147483648)",
    ),
    (
        ("launch.train", *RUN, f"--config.eval_every={2**31}"),
        "eval_every in [-2147483648, 2147483648)",
    ),
    (("launch.train", *RUN, "--config.rounds=ten"),
     "Expected rounds to be an integer, got rounds=ten."),
    (("launch.train", *RUN, "--config.client.rate=fast"), "client.rate to be a number"),
    (("launch.train", *RUN, "--config.sketch.stored=so"), "stored to be True or False"),
    (("launch.train", *RUN, "--config.sketch.query=zzz"), "one of 'privix', 'heaprix'"),
    (("launch.train", *RUN, "--config.sketch.compression=inf"), "a finite"),
    (("launch.train", "--config=configs/default.py"), "Expected --workdir, got none"),
    (("launch.train", "--config=README.md", "--workdir=NEW"), "a Python file"),
    (("launch.train", "--config=configs/default", "--workdir=NEW"),
     "Did you mean 'configs/default.py'?"),
    (("launch.plan", "--config=configs/compare_das.py"), "see launch.compare"),
    (("launch.train", "--config=configs/default.py:abc", "--workdir=NEW"),
     "Expected config=configs/default.py without an argument, got ':abc'"),
    (("launch.train", "--config=configs/safl_claims.py:foo", "--workdir=NEW"),
     "error: Expected configs/safl_claims.py:"),
    (("launch.compare", "--config=configs/compare_das.py", "--workdir="), "workdir=''"),
    ((*ATTACK, "--rate=nan", "--optimizer=adam"), "a finite rate"),
    ((*ATTACK, "--smoothness=-1"), "smoothness"),
    ((*ATTACK, "--prior=laplace"), "prior"),
    ((*ATTACK, "--beside=/nowhere"), "the folder of an attack, got /nowhere"),
    ((*ATTACK, "--over=sketch.compression=2,0"), "compression=0"),
    (("launch.attack", "--config=configs/default.py", "--workdir=/proc/x"),
     "Expected workdir to be writable, got workdir=/proc/x"),
    (("launch.plot", "--workdir=/tmp", "--out="), "out=''"),
    (("launch.spectrum", "--workdir=/no/such"), "workdir=/no/such"),
    ((*PLAN, "--graph=grid:3"), "graph=grid:3"),
    (("launch.train", *RUN, "--distributed"), "machines that jax finds by itself"),
    (("launch.train", *RUN, "--coordinator=here", "--num_processes=2",
      "--process_id=0"), "coordinator to be HOST:PORT"),
    (("launch.train", *RUN, "--config.data.name=minst"), "Did you mean 'mnist'?"),
    ((*PLAN, "--graph=foo"), "got graph=foo"),
    (("launch.train", *RUN, "--config.algorithm=safll"), "Did you mean 'safl'?"),
    (("launch.train", "--config", "no.py", "--workdir=NEW"), "got config=no.py"),
    (("launch.train", *RUN, "--config.server.b1=1"), "server.b1 >= 0 and < 1"),
    (("launch.train", *RUN, "--config.sketch.rows=3000"), "rows <= 2760"),
    (("launch.train", *RUN, "--config.cohort.dropout=2"), "got dropout=2.0"),
    (("launch.train", *RUN, "--config.data.per_client=0"), "got per_client=0"),
    (("launch.compare", "--config=README.md", "--workdir=NEW"), "a Python file"),
    (("launch.calibrate", "--epsilon=1", "--clients=10", "--cohort=5", "--rounds=1",
      "--delta=0.5"), "0 < delta < 1 / 10"),
    (("launch.calibrate", "--epsilon=1", "--clients=10", "--cohort=5", "--rounds=1",
      "--sampling=everyone"), "got cohort=5"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), WRONG, ids=range(len(WRONG)))
def test_it_is_one_line_and_exit_code_2(tmp_path, words, said):
    words = [word.replace("NEW", str(tmp_path / "new")) for word in words]
    done = launch(*words)
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "error" in line.lower())
    assert line.startswith("error: ") and said in line
    assert all(line.startswith("note: ") for line in done.stdout.splitlines())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new" / "config.json").exists()


@pytest.mark.parametrize(
    ("module", "name", "content", "said"),
    [
        ("launch.train", "broken.py", "import nothing_of_it\ndef get_config(): ...",
         "nothing_of_it"),
        ("launch.compare", "broken.py", "import nothing_of_it", "nothing_of_it"),
        ("launch.spectrum", "config.json", "{", "config.json to be an unchanged"),
        ("launch.spectrum", "config.json", '{"over": ["x"]}', "got workdir="),
        ("launch.plot", "metrics.csv", "a,b\n1,2\n", "rows with round, bytes_up_total"),
        ("launch.plot", "metrics.csv", "", "rows with round, bytes_up_total"),
    ],
    ids=range(6),
)  # fmt: skip
def test_files_that_are_something_else_are_said_to_be(
    tmp_path, module, name, content, said
):
    (tmp_path / name).write_text(content)
    words = {
        "launch.train": (f"--config={tmp_path / name}", f"--workdir={tmp_path / 'w'}"),
        "launch.compare": (
            f"--config={tmp_path / name}",
            f"--workdir={tmp_path / 'w'}",
        ),
        "launch.spectrum": (f"--workdir={tmp_path}",),
        "launch.plot": (f"--workdir={tmp_path}", f"--out={tmp_path / 'p.png'}"),
    }[module]
    done = launch(module, *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_platform_that_is_not_here_is_one_line(tmp_path):
    flags = ("--config=configs/default.py", f"--workdir={tmp_path / 'new'}")
    done = launch("launch.train", *flags, JAX_PLATFORMS="cuda")
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: Expected") and "JAX_PLATFORMS=cuda" in line
    assert "Traceback" not in done.stderr


def test_a_command_runs_in_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "launch.plan", "--config=configs/default.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("safl: mlp of 55210 parameters on digits")


@pytest.mark.parametrize("form", ["--config={}", "--config {}", "-config={}"])
def test_a_config_of_the_clone_is_found_from_any_folder(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    argv = ["train", *form.format("configs/compare_das.py:few").split(), "--x=configs"]
    *_, found, last = clone.with_configs(argv)
    assert found.endswith(str(ROOT / "configs/compare_das.py:few")) and last == argv[-1]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/compare_das.py").touch()  # one's own comes first
    own = form.replace(" ", "=").format("configs/compare_das.py:few")
    assert clone.with_configs(argv) == ["train", own, "--x=configs"]
