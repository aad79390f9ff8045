"""Theorems compared with measurements, on problems whose constants are known."""
