"""Benchmarks beside the package; in a clone: python -m benchmarks.NAME."""
