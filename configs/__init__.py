"""Configs: every legal key in `default`, and a file for each experiment."""
