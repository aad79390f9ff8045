"""Checks of arguments: one line with the name, the value and what is allowed."""

import difflib
import numbers
import operator
import os
import warnings
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np


def at_least_one(**named: int) -> None:
    """Raises unless every named argument is an integer of at least one."""
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


def below_one(**named: float) -> None:
    """Raises a ValueError unless every named argument is at least 0 and below 1."""
    for name, value in named.items():
        if not 0 <= value < 1:
            msg = f"Expected 0 <= {name} < 1, got {name}={value}."
            raise ValueError(msg)


def at_most(limit: int, reason: str, **named: int) -> None:
    """Raises a ValueError unless every named argument is at most `limit`."""
    for name, value in named.items():
        if value > limit:
            msg = f"Expected {name} <= {limit} ({reason}), got {name}={value}."
            raise ValueError(msg)


def warn_if_long(numbers: int, d: int, *, stacklevel: int) -> None:
    """Warns of a message of more numbers than the model of `d` numbers has."""
    if numbers > d:
        text = (
            f"A message of {numbers} numbers is longer than the model, which has {d}: "
            "without a sketch it would be shorter, and exact."
        )
        warnings.warn(text, stacklevel=stacklevel + 1)


def one_of(allowed: Sequence[str], **named: str) -> None:
    """Raises a ValueError unless each of the `named` arguments is one of `allowed`.

    >>> one_of(("median", "mean"), query="meen")
    Traceback (most recent call last):
    ValueError: Expected query to be one of 'median', 'mean', got query='meen'. \
Did you mean 'mean'?
    """
    for name, value in named.items():
        if value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed)
            msg = f"Expected {name} to be one of {choices}, got {name}={value!r}."
            raise ValueError(msg + nearest(value, allowed))


def nearest(value: str, allowed: Sequence[str]) -> str:
    """Returns " Did you mean ...?" with the name closest to `value`, if any is."""
    near = difflib.get_close_matches(str(value).lower(), allowed, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def absent(path: str | os.PathLike) -> str:
    """Returns ", which does not exist" for a path of which this is true."""
    return "" if os.path.exists(path) else ", which does not exist"


def is_known(number: Any) -> TypeGuard[float]:
    """Returns whether `number` has a value now, which a traced one does not."""
    try:
        float(number)
    except TypeError:  # jax's own is one
        return False
    return True


def is_off(number: Any) -> bool:
    """Returns whether an option is known to be zero; a traced one is not."""
    return is_known(number) and bool(number == 0)


def in_range(low: float, high: float, **named: Any) -> None:
    """Raises unless every named argument is a finite number in [low, high].

    A traced number passes: its value is known only while the program runs.
    """
    for name, value in named.items():
        text = (
            f"Expected {name} to be a number in [{low}, {high}], got {name}={value!r}."
        )
        is_number = isinstance(value, numbers.Real | np.ndarray)
        is_number |= hasattr(value, "aval")  # jax's, which is not imported here
        if isinstance(value, bool) or not is_number or np.shape(value) != ():
            raise TypeError(text)
        if is_known(value) and not (low <= value <= high and np.isfinite(value)):
            raise ValueError(text)
