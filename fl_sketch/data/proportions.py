"""Partitions by shares that are drawn at random from a Dirichlet distribution.

A share is a whole number of 2^-30, so that the last digits of exp do not matter.
"""

import numbers

import numpy as np

from fl_sketch.data import dealing
from fl_sketch.data.dealing import PRECISION, Partition


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, *, seed: int
) -> Partition:
    """Divides each class among the clients in proportions drawn from Dirichlet(alpha).

    Small alpha: each class belongs to few clients; large alpha: evenly spread. Any
    positive alpha will do: proportions are drawn as logarithms, so none is NaN, and
    nothing is drawn again until it pleases. A client left with nothing is given an
    example of those who have most, so that all have one.

    Args:
      labels: integers [n], the label of each example.
      clients: the number of clients.
      alpha: the concentration, above zero.
      seed: the seed of the proportions and of the shuffle.

    Raises:
      ValueError: for more clients than examples, or alpha that is not positive.
    """
    labels = dealing.check_labels(labels, clients)
    _check_alpha(alpha)
    names, labels = np.unique(labels, return_inverse=True)
    random = dealing.generator(seed)
    by_label = np.split(
        dealing.shuffled_by(labels, random), np.cumsum(np.bincount(labels))
    )
    owners = np.empty(len(labels), np.int64)
    for members in by_label[: len(names)]:
        counts = dealing.divided(len(members), _proportions(clients, alpha, random))
        owners[members] = np.repeat(np.arange(clients), counts)
    return dealing.from_owners(_none_empty(owners, clients, random), clients)


def mixtures(labels: np.ndarray, clients: int, alpha: float, *, seed: int) -> Partition:
    """Gives clients equally many examples, of classes in shares of each one's own.

    A client's shares of the classes are drawn from Dirichlet(alpha), and so is the
    class of each of its examples in these shares. Where too few of a class are left,
    the first clients get them, and the others draw again among the other classes.

    Args:
      labels: integers [n], the label of each example.
      clients: the number of clients.
      alpha: the concentration, above zero.
      seed: the seed of the shares and of what is drawn.

    Raises:
      ValueError: for more clients than examples, or alpha that is not positive.

    Reference: Hsu et al. (2019), section 3.
    """
    labels = dealing.check_labels(labels, clients)
    _check_alpha(alpha)
    names, labels = np.unique(labels, return_inverse=True)
    random = dealing.generator(seed)
    by_label = dealing.shuffled_by(labels, random)
    shares = _log_proportions((clients, len(names)), alpha, random)
    owed = np.diff(dealing.even_cuts(len(labels), clients))
    left = np.bincount(labels)
    held = np.zeros((clients, len(names)), np.int64)
    while owed.any():  # every time a class is used up, or nothing is owed
        wanted = _drawn(np.where(left > 0, shares, -np.inf), owed, random)
        cuts = np.minimum(np.cumsum(wanted, axis=0), left)
        given = np.diff(cuts, axis=0, prepend=0)
        held, owed, left = held + given, owed - given.sum(1), left - given.sum(0)
    owners = np.empty(len(labels), np.int64)
    owners[by_label] = np.repeat(
        np.tile(np.arange(clients), len(names)), held.T.ravel()
    )
    return dealing.from_owners(owners, clients)


def _drawn(
    log: np.ndarray, counts: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Returns how often each client draws each class, int64 [clients, classes].

    Args:
      log: the logarithms of each client's shares [clients, classes].
      counts: the number of draws of each client [clients].
      random: the source of what is drawn.
    """
    ends = np.cumsum(_rounded(log, axis=1), axis=1)
    owner = np.repeat(np.arange(len(log)), counts)
    place = random.integers(ends[owner, -1])
    drawn = np.zeros(log.shape, np.int64)
    before = np.zeros(len(log), np.int64)
    for number in range(log.shape[1]):
        below = np.bincount(owner[place < ends[owner, number]], minlength=len(log))
        drawn[:, number] = below - before
        before = below
    return drawn


def _check_alpha(alpha: float) -> None:
    if not isinstance(alpha, numbers.Real) or not 0 < alpha < np.inf:
        msg = f"Expected alpha to be a positive number, got alpha={alpha!r}."
        raise ValueError(msg)


def _proportions(clients: int, alpha: float, random: np.random.Generator) -> np.ndarray:
    """Returns int64 proportional to a draw from Dirichlet(alpha), the largest 2^30."""
    return _rounded(_log_proportions((clients,), alpha, random), axis=0)


def _log_proportions(
    shape: tuple[int, ...], alpha: float, random: np.random.Generator
) -> np.ndarray:
    """Returns logarithms of numbers in proportion to draws from Dirichlet(alpha).

    If G ~ Gamma(alpha + 1) and U is uniform, then G U^(1/alpha) ~ Gamma(alpha); its
    logarithm is finite when the number itself would be zero for all clients.
    """
    alpha = max(float(alpha), 1e-100)  # 1 / alpha stays finite
    log = np.log(random.standard_gamma(alpha + 1, shape))
    return log - random.standard_exponential(shape) / alpha


def _rounded(log: np.ndarray, axis: int) -> np.ndarray:
    """Returns int64 in proportion to exp(log), the largest along the axis 2^30."""
    shares = np.exp(log - log.max(axis, keepdims=True))
    return np.rint(shares * 2.0**PRECISION).astype(np.int64)


def _none_empty(
    owners: np.ndarray, clients: int, random: np.random.Generator
) -> np.ndarray:
    """Returns owners in which clients without examples got one of the richest's.

    The richest give what they have above a level: the highest that is enough.
    """
    sizes = np.bincount(owners, minlength=clients)
    poor = np.flatnonzero(sizes == 0)
    low, high = 1, int(sizes.max())  # above `low` there is enough, as examples suffice
    while high - low > 1:
        middle = (low + high) // 2
        enough = np.maximum(sizes - middle, 0).sum() >= len(poor)
        low, high = (middle, high) if enough else (low, middle)
    order = np.lexsort((random.permutation(len(owners)), owners))
    rank = np.arange(len(owners)) - dealing.starts(sizes)[owners[order]]
    spare = order[rank >= low]
    given = random.permutation(spare)[: len(poor)]
    owners = owners.copy()
    owners[given] = poor
    return owners
