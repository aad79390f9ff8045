"""Theorems beside measurements, on problems whose constants are known."""
