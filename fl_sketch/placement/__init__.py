"""Rounds compiled for accelerators that are not at hand, and what is read off them."""
