"""Eight devices for every test: set before jax is imported anywhere."""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax  # noqa: E402

jax.config.update("jax_compilation_cache_dir", ".cache/jax")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

collect_ignore = ["tests/peers"]  # a script for other people's clock, not a test
