"""Who masks with whom: everyone with everyone, or a few neighbours on a random ring.

In a cohort of n clients with k neighbours each, a client makes k masks, not n - 1
(Bell et al., 2020). The ring is a random order of the clients; neighbours are the k / 2
that follow and the k / 2 that precede.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

SECURITY = 40  # bits: the chance of too many colluders is at most 2^-40 a round
CORRECTNESS = 30  # bits: that of a sum that cannot be recovered, 2^-30


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


@functools.lru_cache
def enough(clients: int, colluding: float, dropping: float) -> tuple[int, int] | None:
    """Returns few neighbours and their threshold, if fewer than all are enough.

    Three events are rare if colluders and those who drop out are drawn without regard
    to the ring: that a client has `threshold` colluding neighbours, that one has fewer
    than `threshold` neighbours who stay, and that colluders and drop-outs cut the ring
    in two, whose sums would then show. The first two are tails of a hypergeometric
    distribution, times the number of clients. The last takes two runs of k / 2 clients.

    Args:
      colluding: the fraction of clients that may tell the server all they know.
      dropping: the fraction of clients that may drop out.
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
    return threshold and (2 * many, threshold)


def _threshold(
    clients: int, neighbours: int, colluding: float, dropping: float
) -> int | None:
    """Returns a threshold for which all three events are rare, if there is one."""
    from scipy import stats  # takes half a second to import

    others, bad = clients - 1, math.floor(colluding * clients)
    gone = math.floor(dropping * clients)
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
