"""Laws of the mesh: a core that is a device keeps its loops to itself."""

import os

import jax
import jax.numpy as jnp
import pytest

from fl_sketch import engine
from fl_sketch.engine import mesh

CORES = engine.cores()


def parts(options):
    """Returns how often a long loop says into how many parts it is split."""
    lowered = jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((1000, 1000), jnp.float32))
    return lowered.compile(options).as_text().count("outer_dimension_partitions")


def test_cores_are_counted_where_systems_do_not_say_which_are_ours(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert engine.cores() == os.cpu_count()


def test_what_a_user_says_of_an_option_stays(monkeypatch):
    every = engine.mesh_over(jax.devices())
    monkeypatch.setattr(mesh, "cores", lambda: every.size)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert engine.compiler_options(every) == mesh.UNSPLIT
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=fusion")
    assert set(engine.compiler_options(every)) == {"xla_cpu_multi_thread_eigen"}


@pytest.mark.parametrize(
    ("places", "chunk"),
    [(1, 1), (16, 8), (18, 5), (20, 5), (2 * 8 * 3, 8), (2 * 8 * 3 + 1, 7)],
)
def test_an_accelerator_has_turns_of_about_as_many_clients(monkeypatch, places, chunk):
    """At most eight at a time, and in the last turn no fewer than it must."""
    two = engine.mesh_over(jax.devices()[:2])
    assert engine.chunk_size(two, places) == 1
    monkeypatch.setattr(mesh, "on_cpu", lambda mesh: False)
    assert mesh.AT_ONCE == 8 and engine.chunk_size(two, places) == chunk
    most = -(-places // 2)
    given = [engine.chunk_size(two, places, given=given) for given in (1, 3, 1000)]
    assert given == [1, min(3, most), most]


@pytest.mark.skipif(
    not 1 < CORES <= jax.device_count(), reason="needs cores, each of them a device"
)
def test_loops_are_split_only_where_a_core_is_free():
    some = engine.mesh_over(jax.devices()[:1])
    assert parts(engine.compiler_options(some)) == 1
    every = engine.mesh_over(jax.devices()[:CORES])
    assert parts(engine.compiler_options(every)) == 0
