"""Checks of arguments: one line with the name, the value and what is allowed.

>>> at_least_one(cols=0)
Traceback (most recent call last):
ValueError: Expected cols to be an integer >= 1, got cols=0.
"""

import operator
from collections.abc import Sequence


def at_least_one(**named: int) -> None:
    """Raises unless every named argument is an integer of at least one.

    Raises:
      TypeError: for a bool, a float or anything else that is not an integer.
      ValueError: for an integer below one.
    """
    for name, value in named.items():
        text = f"Expected {name} to be an integer >= 1, got {name}={value!r}."
        if isinstance(value, bool):
            raise TypeError(text)
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(text) from None
        if number < 1:
            raise ValueError(text)


def at_most(limit: int, reason: str, **named: int) -> None:
    """Raises a ValueError unless every named argument is at most `limit`."""
    for name, value in named.items():
        if value > limit:
            msg = f"Expected {name} <= {limit} ({reason}), got {name}={value}."
            raise ValueError(msg)


def one_of(allowed: Sequence[str], **named: str) -> None:
    """Raises a ValueError unless every named argument is one of `allowed`."""
    for name, value in named.items():
        if value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed)
            msg = f"Expected {name} to be one of {choices}, got {name}={value!r}."
            raise ValueError(msg)
