"""fl_sketch: simulates federated learning with compressed, private updates.

A file imports only from packages that are listed before its own:

- `core` (types, keys, trees, checks of input);
- `sketch` (sketch operators and compressors), `theory` (bounds of theorems), `data` and
  `models`;
- `channels` (from updates to an estimate of their mean) and `transforms` (local work,
  and sketches as optax transformations);
- `privacy` (bounds, noise and accounting);
- `algorithms` (one file for each method) and `workdir` (the folder of a run);
- `engine` (rounds as one program, with a server or without);
- `audit` (attacks on messages and models) and `config` (the keys of a config);
- `run` (one config), `sweep` (many configs), and `experiments` (claims of papers, and
  benchmarks).
"""

import os
import sys
import warnings
from importlib import metadata

__version__ = "0.1.0"

_SUMS = "xla_cpu_experimental_ynn_fusion_type"  # a flag of XLA, which jax reads once


def _with_right_sums() -> None:
    """Keeps XLA from a library of sums that returns wrong ones on CPUs.

    In jaxlib 0.10.2 and 0.11, a sum over an array that was broadcast changes from call
    to call, and in 0.10.2 the last of many rows of products can be wrong. 0.12 has
    neither. A user's own value of the flag is left as it is.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    version = tuple(map(int, metadata.version("jaxlib").split(".")[:2]))
    if version >= (0, 12) or _SUMS in flags:
        return
    os.environ["XLA_FLAGS"] = f"{flags} --{_SUMS}=-reduce".strip()
    if "jax" in sys.modules and _has_cpus(sys.modules["jax"]):
        msg = (
            "jax made its devices before fl_sketch was imported, so some sums on CPUs "
            f"can be wrong: import fl_sketch first, or set XLA_FLAGS=--{_SUMS}=-reduce."
        )
        warnings.warn(msg, stacklevel=3)


def _has_cpus(jax) -> bool:
    """Returns whether jax has made its devices, and they are CPUs."""
    made = jax._src.xla_bridge.backends_are_initialized()  # so in these versions
    return made and jax.default_backend() == "cpu"


_with_right_sums()
