"""Benchmarks: what a part costs, compared with a copy of the same memory."""
