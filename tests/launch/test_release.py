"""python -m launch.release: four files of a run that may be published, or one line."""

import pytest

from tests.launching import launch

pytestmark = pytest.mark.slow

FILES = ["MODEL.md", "params.json", "params.safetensors", "privacy.json"]
PRIVATE = (
    "--config=configs/private_safl.py",
    "--config.rounds=4",
    "--config.eval_every=2",
    "--config.checkpoint_every=2",
)


def refused(workdir, out, *words):
    done = launch("launch.release", f"--workdir={workdir}", f"--out={out}", *words)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_a_run_becomes_four_files_and_nothing_is_compiled(tmp_path):
    run, out = tmp_path / "run", tmp_path / "new" / "out"
    done = launch("launch.train", f"--workdir={run}", *PRIVATE)
    assert done.returncode == 0, done.stderr
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    words = (f"--workdir={run}", f"--out={out}")
    done = launch("launch.release", *words, JAX_LOG_COMPILES="1")
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, second = done.stdout.splitlines()
    assert "650 parameters" in first and "epsilon = 8 at delta = 1e-05" in second
    assert sorted(path.name for path in out.iterdir()) == FILES
    now = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert now == before
    assert f"out={out}" in refused(run, out)
    assert "config" in refused(run, tmp_path / "more", "--config=x")
