"""Grids that grow until their best point has a worse one on either side.

>>> beyond({"server.rate": (0.001, 0.003, 0.01)}, {"server.rate": 0.001})
('server.rate', 0.0003)
>>> beyond({"server.rate": (0.0003, 0.001, 0.003, 0.01)}, {"server.rate": 0.001})
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch.config import parse


def beyond(
    tune: Mapping[str, Sequence[Any]], best: Mapping[str, Any]
) -> tuple[str, float] | None:
    """Returns a key whose best value is at an end, and the value to try next.

    Values go on as they began: 0.003, 0.01, 0.03 with 0.1. None: the best point is
    inside, in all continuous keys that have two values or more, or what would come
    next is nothing that its key may have.

    Args:
      tune: keys and the values that were tried.
      best: the keys of the best point and their values.
    """
    for key, values in tune.items():
        found = sorted({*values})
        if key not in parse.CONTINUOUS or len(found) < 2 or found[0] <= 0:
            continue
        down = best[key] == found[0]
        if not down and best[key] != found[-1]:
            continue
        first, second, third, *_ = (*(found if down else found[::-1]), None)
        ratio = second / first if third is None else third / second
        value = float(f"{first / ratio:.6g}")
        try:
            parse.check_number(key, value)
        except ValueError:
            continue
        return key, value
    return None
