"""Commands as a user starts them, but for a cache of compiled programs."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
}
# Without the eight devices of the tests' own process.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | CACHE


def launch(*arguments, **variables):
    """Runs `python -m ...` to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | variables,
    )
