"""Sums on CPUs are right, also where a library of jaxlib has wrong ones."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

import fl_sketch

FLAG = "--xla_cpu_experimental_ynn_fusion_type=-reduce"
AFFECTED = tuple(map(int, jaxlib.__version__.split(".")[:2])) < (0, 12)
only_where_affected = pytest.mark.skipif(not AFFECTED, reason="this jaxlib has no such")


def of_rows(x):
    """Returns a sum over an array that is broadcast."""
    return jnp.broadcast_to(x, (64, x.size)).sum()


def imported_after(code, **environment):
    """Returns the flags, and the warnings, of a process that runs this code first."""
    code += "\nimport fl_sketch, os; print(os.environ.get('XLA_FLAGS'))"
    known = {key: one for key, one in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=known | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_a_sum_of_what_is_broadcast_is_the_same_in_each_call():
    total = jax.jit(of_rows).lower(jnp.ones(50_000)).compile()
    assert {float(total(jnp.ones(50_000))) for _ in range(300)} == {64 * 50_000.0}
    if AFFECTED:
        assert "__ynn_fusion" not in total.as_text()


def test_sums_of_products_are_right_in_the_last_of_many_rows():
    rows = jnp.zeros((32_769, 3)).at[:, 0].set(jnp.arange(32_769.0))
    squares = jax.jit(jax.vmap(lambda row: ((jnp.eye(3) @ row) ** 2).sum()))(rows)
    np.testing.assert_allclose(squares, np.arange(32_769.0) ** 2, rtol=1e-6)


@only_where_affected
def test_flags_of_a_user_stay():
    assert imported_after("import jax") == (FLAG, "")
    flags = "--xla_cpu_multi_thread_eigen=false"
    assert imported_after("", XLA_FLAGS=flags) == (f"{flags} {FLAG}", "")
    own = "--xla_cpu_experimental_ynn_fusion_type="
    assert imported_after("", XLA_FLAGS=own) == (own, "")


@only_where_affected
def test_devices_that_were_made_before_are_warned_of():
    assert "import fl_sketch first" in imported_after("import jax; jax.devices()")[1]


def test_a_jaxlib_without_the_fault_gets_no_flag(monkeypatch):
    monkeypatch.setattr(fl_sketch.metadata, "version", lambda name: "0.12.0.1")
    monkeypatch.delenv("XLA_FLAGS")
    fl_sketch._with_right_sums()
    assert "XLA_FLAGS" not in os.environ
