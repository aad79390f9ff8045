"""Compiled programs are kept whole, by their owner alone, or not at all."""

import filecmp
import os
import pathlib
import subprocess
import sys
import zlib

import jax
import pytest

from fl_sketch import compile_cache
from tests.launching import launch

pytestmark = pytest.mark.usefixtures("no_cache")
PROGRAM = zlib.compress(b"a program")


@pytest.fixture
def no_cache():
    """Takes jax's own folder away, which the tests share, and gives it back."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_enable_xla_caches",
    )
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def compiles(folder, **programs):
    """Plays a process that compiles these; returns what it had in the beginning."""
    jax.config.update("jax_compilation_cache_dir", None)
    with compile_cache.kept(str(folder)):
        own = pathlib.Path(jax.config.jax_compilation_cache_dir)
        before = {path.name for path in own.iterdir()}
        for name, content in programs.items():
            (own / f"{name}-cache").write_bytes(content)
    return before


def names(folder):
    (shared,) = folder.iterdir()
    return {path.name for path in shared.iterdir()}


def test_a_second_start_has_what_the_first_one_compiled(tmp_path):
    assert compiles(tmp_path, one=PROGRAM) == set()
    assert compiles(tmp_path, two=PROGRAM) == {"one-cache"}
    assert names(tmp_path) == {"one-cache", "two-cache"}


def test_half_a_program_is_not_kept(tmp_path):
    compiles(tmp_path, whole=PROGRAM, half=PROGRAM[:-3], empty=b"", no_program=b"x" * 9)
    assert names(tmp_path) == {"whole-cache"}


def test_what_a_killed_process_left_is_taken_over(tmp_path):
    compiles(tmp_path)
    (shared,) = tmp_path.iterdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for process in (gone.pid, os.getppid()):
        left = shared / f"of-{process}-{os.uname().nodename}-x"
        left.mkdir()
        (left / f"from{process}-cache").write_bytes(PROGRAM)
        (left / "half-cache").write_bytes(PROGRAM[:-3])
    assert compiles(tmp_path) == {f"from{gone.pid}-cache"}
    assert names(tmp_path) == {f"from{gone.pid}-cache", left.name}  # one still lives


def test_two_processes_keep_the_same_program_once(tmp_path):
    with compile_cache.kept(str(tmp_path)):
        own = pathlib.Path(jax.config.jax_compilation_cache_dir)
        (own / "one-cache").write_bytes(PROGRAM)
        compiles(tmp_path, one=PROGRAM)
    assert names(tmp_path) == {"one-cache"}


def test_what_was_not_used_for_longest_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_cache, "MOST", 2 * len(PROGRAM))
    compiles(tmp_path, a=PROGRAM, b=PROGRAM)
    (shared,) = tmp_path.iterdir()
    os.utime(shared / "b-cache", (0, 0))
    compiles(tmp_path, c=PROGRAM)
    assert names(tmp_path) == {"a-cache", "c-cache"}


def test_a_folder_that_others_can_write_is_not_used(tmp_path, capsys):
    compiles(tmp_path)
    (shared,) = tmp_path.iterdir()
    assert shared.stat().st_mode & 0o777 == 0o700
    shared.chmod(0o777)
    with compile_cache.kept(str(tmp_path)):
        assert jax.config.jax_compilation_cache_dir is None
    assert "can be written by others" in capsys.readouterr().err


def test_a_full_disk_stops_nothing(tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compile_cache.tempfile, "mkdtemp", full)
    with compile_cache.kept(str(tmp_path)):
        assert jax.config.jax_compilation_cache_dir is None
    assert "not kept: [Errno 28] No space" in capsys.readouterr().err


def test_jax_keeps_what_it_was_given_unless_a_command_says_otherwise(tmp_path):
    for folder, expected in ((None, "/elsewhere"), ("", None)):
        jax.config.update("jax_compilation_cache_dir", "/elsewhere")
        with compile_cache.kept(folder):
            assert jax.config.jax_compilation_cache_dir == expected
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    with compile_cache.kept(str(tmp_path)):
        assert jax.config.jax_compilation_cache_dir.startswith(str(tmp_path))


@pytest.mark.slow
def test_a_run_is_the_same_to_the_bit_with_and_without(tmp_path):
    def train(name, cache):
        done = launch(
            "launch.train", "--config=configs/default.py", "--config.rounds=4",
            "--config.eval_every=2", f"--workdir={tmp_path / name}",
            f"--compile_cache={cache}", JAX_COMPILATION_CACHE_DIR="",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    train("none", "")
    train("cold", tmp_path / "kept")
    kept = names(tmp_path / "kept")
    assert kept and all(name.endswith("-cache") for name in kept)
    train("warm", tmp_path / "kept")
    # On a busy machine a small program may have been too quick for a file before.
    large = {name for name in names(tmp_path / "kept") if name.startswith("jit_rounds")}
    assert large == {name for name in kept if name.startswith("jit_rounds")} != set()
    for name in ("cold", "warm"):
        for file in ("checkpoints/round_00000004.npz", "config.json"):
            one, other = tmp_path / "none" / file, tmp_path / name / file
            assert filecmp.cmp(one, other, shallow=False), (name, file)
