"""Nested mappings, such as configs, by dotted keys."""

import math
from collections.abc import Mapping
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


def for_json(value: Any) -> Any:
    """Returns `value` with null instead of each float that is not finite."""
    if isinstance(value, Mapping):
        return {key: for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
