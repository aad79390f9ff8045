"""Configs: every key in `default`, and one file for each experiment."""
