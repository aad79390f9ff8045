"""Benchmarks: what a part costs, beside a copy of the same memory in the same run."""
