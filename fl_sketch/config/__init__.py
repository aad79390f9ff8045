"""Configs: what their keys may say, and the parts that they name."""
