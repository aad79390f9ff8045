"""Anything at all, drawn at random: it runs, or it is refused in one line."""
