"""What all tests share, set before jax is imported anywhere.

Eight devices. Programs are compiled with less effort: they run once or twice, and
compiling them is what most tests do. Commands that tests start have neither.
"""

import os

os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=1",
    )
)

import jax  # noqa: E402

jax.config.update("jax_compilation_cache_dir", ".cache/jax")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

collect_ignore = ["tests/peers"]  # a script for other people's clock, not a test
