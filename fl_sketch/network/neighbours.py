"""Who masks with whom: everyone with everyone, or a few neighbours on a random ring.

In a cohort of n clients with k neighbours each, a client makes k masks, not n - 1 (Bell
et al., 2020). The ring is a random order of the clients. The neighbours of a client are
the k / 2 after and the k / 2 before it.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from fl_sketch.core import validate

ALL_UP_TO = 100  # clients, of which each masks with all others
SECURITY = 40  # bits: each event that shows more than the sum has a chance of 2^-40
CORRECTNESS = 30  # bits: that of a sum that cannot be recovered is 2^-30


def groups(
    clients: Sequence[int], neighbours: int, shuffle: Callable[[list[int]], None]
) -> dict[int, tuple[int, ...]]:
    """Returns the group of each client, in order: the client and its neighbours.

    Args:
      neighbours: an even number, unless all other clients are neighbours.
      shuffle: orders a list at random, in place.

    >>> groups([3, 5, 7, 9, 11], 2, lambda ring: ring.reverse())[9]
    (7, 9, 11)
    """
    ring, half = list(clients), neighbours // 2
    if neighbours >= len(ring) - 1:
        return dict.fromkeys(ring, tuple(sorted(ring)))
    shuffle(ring)
    count = len(ring)
    return {
        client: tuple(
            sorted(ring[(place + step) % count] for step in range(-half, half + 1))
        )
        for place, client in enumerate(ring)
    }


def usual(clients: int, colluding: float, dropping: float) -> tuple[int, int]:
    """Returns the usual number of neighbours and threshold for a cohort.

    In a cohort of up to 100 clients all others are neighbours, and the threshold is
    more than two thirds, if colluders and drop-outs leave it the choice.

    Args:
      colluding: the fraction of clients that may tell the server all they know.
      dropping: the fraction of clients that may drop out.

    Raises:
      ValueError: if no threshold exceeds the colluders and half of the cohort, and is
        at most the number of clients that stay.

    >>> usual(10, 0.2, 0.2), usual(1000, 0.2, 0.2)
    ((9, 7), (112, 58))
    """
    validate.below_one(colluding=colluding, dropping=dropping)
    bad, gone = _floors(clients, colluding, dropping)
    low, high = max(bad, clients // 2) + 1, clients - gone
    if low > high:
        msg = (
            f"Expected at least {low} of {clients} clients to stay where {bad} may "
            f"collude, got {high} by dropping={dropping} and colluding={colluding}."
        )
        raise ValueError(msg)
    few = _enough(clients, colluding, dropping) if clients > ALL_UP_TO else None
    return few or (clients - 1, min(max(2 * clients // 3 + 1, low), high))


def _floors(clients: int, colluding: float, dropping: float) -> tuple[int, int]:
    """Returns how many clients may collude, and how many may drop out."""
    return math.floor(colluding * clients), math.floor(dropping * clients)


@functools.lru_cache
def _enough(clients: int, colluding: float, dropping: float) -> tuple[int, int] | None:
    """Returns few neighbours and their threshold, if fewer than all are enough.

    Three events are rare if colluders and those who drop out are drawn without regard
    to the ring: that a client has `threshold` colluding neighbours, that one has fewer
    than `threshold` neighbours who stay, and that colluders and drop-outs cut the ring
    in two, whose sums would then show. The first two are tails of a hypergeometric
    distribution, times the number of clients. The last takes two runs of k / 2 clients.
    """
    few, many = 1, (clients - 2) // 2  # halves of the number of neighbours
    if many < 1 or _threshold(clients, 2 * many, colluding, dropping) is None:
        return None
    while few < many:
        half = (few + many) // 2
        if _threshold(clients, 2 * half, colluding, dropping) is None:
            few = half + 1
        else:
            many = half
    threshold = _threshold(clients, 2 * many, colluding, dropping)
    return None if threshold is None else (2 * many, threshold)


def _threshold(
    clients: int, neighbours: int, colluding: float, dropping: float
) -> int | None:
    """Returns a threshold for which all three events are rare, if there is one."""
    from scipy import stats  # takes half a second to import

    others = clients - 1
    bad, gone = _floors(clients, colluding, dropping)
    thresholds = np.arange(neighbours // 2 + 1, neighbours + 1)
    told = stats.hypergeom.logsf(thresholds - 1, others, bad, neighbours)
    lost = stats.hypergeom.logcdf(thresholds - 1, others, others - gone, neighbours)
    places = np.arange(neighbours)
    with np.errstate(divide="ignore"):
        cut = np.log(np.maximum(bad + gone - places, 0) / (clients - places)).sum()
    bits, many = math.log(2), math.log(clients)
    good = (told + many <= -SECURITY * bits) & (lost + many <= -CORRECTNESS * bits)
    if not good.any() or cut + 2 * many - bits > -SECURITY * bits:
        return None
    return int(np.median(thresholds[good]))
