"""Rounds compiled ahead of time for accelerators that this machine lacks."""
