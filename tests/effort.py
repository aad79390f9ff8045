"""How little effort compilers make for tests, whose programs run once or twice.

Imported before jax is: an option that XLA does not know ends the process.
"""

from importlib import metadata

_KNOWN = tuple(map(int, metadata.version("jaxlib").split(".")[:2]))
# A third less time to compile than by default. The emitter of fused loops takes twice
# as long as LLVM's of single ones, and is the only one from 0.11 on.
OPTIONS = {"xla_cpu_parallel_codegen_split_count": 1} | (
    {"xla_cpu_use_fusion_emitters": False} if _KNOWN < (0, 11) else {}
)
# In the environment of commands: all that they compile is kept for the next.
CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}


def flags() -> str:
    """Returns these options, for the environment's XLA_FLAGS."""
    options = {"xla_backend_optimization_level": 1, **OPTIONS}
    return " ".join(f"--{key}={value}".lower() for key, value in options.items())
