"""What all tests share, set before jax is imported anywhere.

Eight devices. Programs are compiled with less effort: they run once or twice, and
compiling them is what most tests do. What was compiled is kept in the user's cache
directory, for both workers, the commands that tests start, and the next time. What is
left then is tracing, a fifth of which is the garbage collector and the line of the
source that each operation remembers: the first comes by more seldom here, the second is
left out.
"""

import contextlib
import gc
import importlib.util
import os
import time

import pytest

from tests import effort

if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has them from who started it
    os.environ["XLA_FLAGS"] = " ".join(
        (
            os.environ.get("XLA_FLAGS", ""),
            "--xla_force_host_platform_device_count=8",
            effort.flags(),
        )
    )
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nobody is to look for a TPU
gc.set_threshold(50_000, 20, 100)

import jax  # noqa: E402

from fl_sketch.core import files  # noqa: E402
from launch import compiled  # noqa: E402

OWN = files.user_cache() / "tests" / compiled.processor()
CACHE = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(OWN))
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
os.environ |= effort.CACHE

if "PYTEST_XDIST_WORKER" not in os.environ:
    with contextlib.suppress(OSError):  # two at once
        compiled.prune(OWN)

BEGUN = time.monotonic()
MINUTES = float(os.environ.get("FL_SKETCH_TEST_MINUTES", "inf"))


def pytest_runtest_setup(item):
    """Skips the tests for which a limit on time, if there is one, leaves none."""
    del item
    if time.monotonic() - BEGUN > 60 * MINUTES:
        pytest.skip(f"{MINUTES:g} minutes are over")


collect_ignore = ["tests/net/simulated.py"]  # a script, not tests
if not importlib.util.find_spec("nvflare"):
    collect_ignore += ["fl_sketch/network/nvflare.py"]
