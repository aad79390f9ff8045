"""Configs: the values of their keys, and the parts that they name."""
