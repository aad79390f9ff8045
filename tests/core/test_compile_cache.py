"""Compiled programs are kept whole, by their owner alone, or not at all."""

import filecmp
import os
import pathlib
import subprocess
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache

from fl_sketch.core import compile_cache
from tests import pages
from tests.launching import ENVIRONMENT, launch

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
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def compiles(folder, **programs):
    """Plays a process that compiles these; returns what it had in the beginning."""
    with compile_cache.kept(str(folder)):
        own = pathlib.Path(jax.config.jax_compilation_cache_dir)
        before = {path.name for path in own.glob("*-cache")}
        for name, content in programs.items():
            (own / f"{name}-cache").write_bytes(content)
    return before


def names(folder):
    (shared,) = folder.iterdir()
    return {path.name for path in shared.iterdir()}


@jax.jit
def slow_to_compile(x):
    return jnp.linalg.qr(jnp.sort(x.reshape(4, 4)) @ jnp.fft.fft(x.reshape(4, 4)).real)


def test_a_second_start_has_what_the_first_one_compiled(tmp_path):
    assert compiles(tmp_path, one=PROGRAM) == set()
    assert compiles(tmp_path, two=PROGRAM) == {"one-cache"}
    assert names(tmp_path) == {"one-cache", "two-cache"}


def test_half_a_program_is_not_kept(tmp_path):
    compiles(tmp_path, whole=PROGRAM, half=PROGRAM[:-3], empty=b"", no_program=b"x" * 9)
    assert names(tmp_path) == {"whole-cache"}


def test_what_was_kept_is_read_and_compiled_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_cache, "SHORTEST", 0.0)
    events = []
    monitoring.register_event_listener(lambda event, **_: events.append(event))
    hit, read = "/jax/compilation_cache/cache_hits", []
    for _ in range(2):
        with compile_cache.kept(str(tmp_path)):
            jax.clear_caches()
            slow_to_compile(np.arange(16.0))
        read.append(events.count(hit))
    assert (read[0], read[1] > 0) == (0, True)
    assert jax.config.jax_compilation_cache_dir is None


def test_another_kind_of_processor_has_a_folder_of_its_own(tmp_path, monkeypatch):
    compiles(tmp_path, one=PROGRAM)
    monkeypatch.setattr(compile_cache, "processor", lambda: "another")
    assert compiles(tmp_path) == set()
    monkeypatch.undo()
    assert compiles(tmp_path) == {"one-cache"}


def test_what_a_killed_process_left_is_taken_over(tmp_path):
    begin = (
        "import jax, sys, os; from fl_sketch.core import compile_cache\n"
        f"kept = compile_cache.kept({str(tmp_path)!r}); kept.__enter__()\n"
        "own = jax.config.jax_compilation_cache_dir\n"
        "for name in sys.argv[1:]:\n"
        f"  open(f'{{own}}/{{name}}-cache', 'wb').write({PROGRAM!r})\n"
        "open(own + '/half-cache', 'wb').write(b'x')\n"
        "print('begun', flush=True); sys.stdin.read()\n"
        "kept.__exit__(None, None, None)"
    )
    python = [sys.executable, "-c", begin]
    environment = ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    with (
        subprocess.Popen([*python, "killed"], **pipes) as killed,
        subprocess.Popen([*python, "living"], **pipes) as living,
    ):
        assert killed.stdout.readline() == living.stdout.readline() == b"begun\n"
        killed.kill()
        killed.wait()
        assert compiles(tmp_path) == {"killed-cache"}
        assert {"killed-cache"} < names(tmp_path)  # and the folder of one that lives
        living.stdin.close()
    assert names(tmp_path) == {"killed-cache", "living-cache"}


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


def test_a_disk_that_was_full_stops_nothing(tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compile_cache.tempfile, "mkdtemp", full)
    with compile_cache.kept(str(tmp_path)):
        assert jax.config.jax_compilation_cache_dir is None
    assert "not kept: [Errno 28] No space" in capsys.readouterr().err


def test_half_a_program_of_a_disk_that_becomes_full_is_not_kept(tmp_path):
    """A limit on the size of files ends a write as a full disk does."""
    code = (
        "import jax, os, resource; from fl_sketch.core import compile_cache\n"
        "import numpy as np\n"
        "from tests.core.test_compile_cache import slow_to_compile\n"
        "compile_cache.SHORTEST = 0\n"
        f"with compile_cache.kept({str(tmp_path)!r}):\n"
        "  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "  slow_to_compile(np.arange(16.0))\n"
        "  own = jax.config.jax_compilation_cache_dir\n"
        "  print(max(file.stat().st_size for file in os.scandir(own)))"
    )
    said = pages.run("-c", code, JAX_COMPILATION_CACHE_DIR="")
    assert int(said) == 2000
    assert not any("slow_to_compile" in name for name in names(tmp_path))


def test_a_user_without_a_home_loses_nothing_but_the_cache(capsys, monkeypatch):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "expanduser", homeless)
    with compile_cache.kept(None):
        assert jax.config.jax_compilation_cache_dir is None
    assert "not kept: Could not determine home" in capsys.readouterr().err


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
            f"--compile_cache={cache}", JAX_COMPILATION_CACHE_DIR="", XLA_FLAGS="",
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
