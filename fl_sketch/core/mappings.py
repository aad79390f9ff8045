"""Nested mappings, such as configs, by dotted keys."""

from typing import Any


def flat(config: Any) -> dict[str, Any]:
    """Returns the values of a config, or of nested mappings, by their dotted keys.

    >>> flat({"rounds": 9, "client": {"rate": 0.1}})
    {'rounds': 9, 'client.rate': 0.1}
    """
    values = {}
    for name, value in config.items():
        if hasattr(value, "items"):
            values |= {f"{name}.{key}": inner for key, inner in flat(value).items()}
        else:
            values[name] = value
    return values
