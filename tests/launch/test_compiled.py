"""Compiled programs are kept by their owner alone, and half of one is not kept."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache

from launch import compiled

NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)
HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """Takes jax's own folder away, which the tests share, and gives it back."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    monkeypatch.setattr(compiled, "SHORTEST", 0.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@jax.jit
def program(x):
    return jnp.sort(x) + 1


def start(folder):
    """Plays a process; returns how many programs it read."""
    hits = []
    monitoring.register_event_listener(lambda event, **_: hits.append(event))
    with compiled.kept(str(folder)):
        jax.clear_caches()
        program(np.arange(8.0))
    return hits.count(HIT)


def kept(folder):
    return sorted(folder.glob("*/*-cache"))


def test_a_second_start_reads_what_the_first_compiled(tmp_path, monkeypatch):
    assert start(tmp_path) == 0 and start(tmp_path) > 0
    assert jax.config.jax_compilation_cache_dir is None
    (private,) = tmp_path.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(compiled, "processor", lambda: "another")
    assert start(tmp_path) == 0


def test_half_a_program_is_compiled_again_in_silence_and_goes(tmp_path, capsys):
    start(tmp_path)
    for path in kept(tmp_path):
        path.write_bytes(path.read_bytes()[:-9])
    assert start(tmp_path) == 0 and not kept(tmp_path)
    assert start(tmp_path) == 0 and start(tmp_path) > 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_of_a_program(tmp_path, capsys):
    """A limit on the size of files ends a write as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        start(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not kept(tmp_path) and capsys.readouterr() == ("", "")


def test_a_folder_that_others_can_write_is_not_used(tmp_path, capsys):
    start(tmp_path)
    (private,) = tmp_path.iterdir()
    private.chmod(0o777)
    with compiled.kept(str(tmp_path)):
        assert jax.config.jax_compilation_cache_dir is None
    assert str(private) in capsys.readouterr().err
