"""Chooses the implementation of a function that is fast on its device."""

import contextlib
import hashlib
import importlib.metadata
import pathlib
import platform
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

GPU = "gpu"  # jax's name of CUDA's devices among backends

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "fl_sketch")
SETTINGS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_enable_x64",
    "jax_default_matmul_precision",
)


def by_platform(
    *args: Any, default: Callable, cpu: Callable | None = None, cuda: Any = None
) -> Any:
    """Returns the result of the function for the platform of the compiled program.

    All of them compute the same from `args`. That for NVIDIA's GPUs is traced only in a
    process with a GPU: importing its kernel tools takes a third of a second.
    """
    forms: dict[str, Callable] = {"cpu": cpu} if cpu else {}
    if cuda and has_gpu():
        forms["cuda"] = cuda
    if not forms:
        return default(*args)
    return lax.platform_dependent(*args, default=default, **forms)


def has_gpu() -> bool:
    """Returns whether programs of this process may be compiled for a GPU."""
    return jax.default_backend() == GPU


def processor() -> str:
    """Returns a short name of this kind of processor."""
    parts = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        facts = {line.partition(":")[0].strip(): line for line in reversed(lines)}
        parts += [facts.get(name, "") for name in ("model name", "flags", "Features")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Returns the versions of packages, and settings of jax, that decide numbers."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return found | {name: str(getattr(jax.config, name)) for name in SETTINGS}
