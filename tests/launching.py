"""Commands as a user starts them, but compiled as `conftest.py` says."""

import os
import pathlib
import subprocess
import sys

from conftest import EFFORT

ROOT = pathlib.Path(__file__).parent.parent
CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}
# Without the eight devices of the tests' own process.
ENVIRONMENT = os.environ | CACHE | {"XLA_FLAGS": " ".join(EFFORT)}


def launch(*arguments, **variables):
    """Runs `python -m ...` to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | variables,
    )
