"""Conditions of theorems on their numbers."""

ROUNDING = 1e-9  # of a largest step that was computed in another order


def at_most(most: float, **named: float) -> None:
    """Raises a ValueError unless one number, given by name, is at most that."""
    ((name, value),) = named.items()
    if not value <= most * (1 + ROUNDING):
        msg = f"The theorem needs {name} <= {most:.6g}, got {name}={value:.6g}."
        raise ValueError(msg)


def at_least(least: float, **named: float) -> None:
    """Raises a ValueError unless one number, given by name, is at least that."""
    ((name, value),) = named.items()
    if not value >= least * (1 - ROUNDING):
        msg = f"The theorem needs {name} >= {least:.6g}, got {name}={value:.6g}."
        raise ValueError(msg)
