"""Partitions: which examples belong to which client.

>>> labels = np.array([0, 0, 0, 1, 1, 1])
>>> dealt = label_shards(labels, 3, 1, seed=0)
>>> [labels[dealt.of(client)].tolist() for client in range(3)]
[[0, 0], [0, 1], [1, 1]]

Every rule is one vectorised pass: a million clients take a second or two. The same
seed gives the same partition everywhere: random integers are those of numpy's PCG64,
and the few real numbers are rounded to integers before anything is decided by them.

====================  ==========================================================
rule                  who uses it
====================  ==========================================================
`iid`                 the reference point of all
`label_shards`        McMahan et al. 2017 with 2 shards, Das et al. 2022 with 5
`classes_per_client`  FedSKETCH: 1 or 2 classes a device
`dirichlet`           Yurochkin et al. 2019, Li et al. 2022
`natural`             speakers, writers, users
`power_law_sizes`     Li et al. 2020 (FedProx): few clients hold most examples
====================  ==========================================================
"""

import numbers
import operator
from typing import NamedTuple

import numpy as np

from fl_sketch import validate


class Partition(NamedTuple):
    """The examples of every client, one after the other.

    Client k holds `indices[starts[k] : starts[k + 1]]`.

    Attributes:
      indices: int32 [total], places in the data set.
      starts: int64 [clients + 1], from 0 to total, never falling.
    """

    indices: np.ndarray
    starts: np.ndarray

    @property
    def clients(self) -> int:
        """Returns the number of clients."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Returns how many examples each client holds, int64 [clients]."""
        return np.diff(self.starts)

    def of(self, client: int) -> np.ndarray:
        """Returns the examples of one `client`, int32 [sizes[client]]."""
        return self.indices[self.starts[client] : self.starts[client + 1]]


def iid(examples: int, clients: int, *, sizes=None, seed: int) -> Partition:
    """Deals shuffled examples, evenly or so that client k gets `sizes[k]`.

    Args:
      examples: the number of examples.
      clients: the number of clients.
      sizes: integers, the examples of each client; None: as even as can be.
      seed: the seed of the shuffle.

    Raises:
      ValueError: for more clients than examples, or sizes below one, of another
        number than clients, or that add up to more than there are examples.
    """
    _check_counts(examples, clients)
    if sizes is None:
        sizes = np.diff(_even_cuts(examples, clients))
    sizes = _whole_numbers("sizes", sizes)
    if len(sizes) != clients or sizes.min() < 1 or sizes.sum() > examples:
        msg = (
            f"Expected sizes to be {clients} numbers >= 1 of sum <= {examples}, "
            f"got {len(sizes)}, the least {sizes.min()}, of sum {sizes.sum()}."
        )
        raise ValueError(msg)
    order = _generator(seed).permutation(examples)[: sizes.sum()]
    return Partition(order.astype(np.int32), _starts(sizes))


def resampled(examples: int, sizes, *, seed: int) -> Partition:
    """Gives client k its own uniform draw of `sizes[k]` examples, with replacement.

    Clients share examples, so there may be many more clients than examples: a
    population of a million from a data set of thousands.

    Args:
      examples: the number of examples.
      sizes: integers >= 1, the examples of each client.
      seed: the seed of the draws.
    """
    validate.at_least_one(examples=examples)
    sizes = _whole_numbers("sizes", sizes)
    if sizes.min() < 1:
        msg = f"Expected sizes to be >= 1, got {sizes.min()}."
        raise ValueError(msg)
    drawn = _generator(seed).integers(examples, size=sizes.sum(), dtype=np.int32)
    return Partition(drawn, _starts(sizes))


def label_shards(
    labels: np.ndarray, clients: int, shards_per_client: int, *, seed: int
) -> Partition:
    """Sorts by label, cuts into equal shards, deals each client the same number.

    Examples of one label are shuffled first. A shard may straddle two labels.

    Args:
      labels: integers [n], the label of each example.
      clients: the number of clients.
      shards_per_client: the number of shards that each gets.
      seed: the seed of the shuffle and of the deal.

    Raises:
      ValueError: for more shards than examples.
    """
    labels = _check_labels(labels, clients)
    validate.at_least_one(shards_per_client=shards_per_client)
    shards = clients * shards_per_client
    if shards > len(labels):
        msg = (
            f"Expected clients x shards_per_client <= {len(labels)} examples, got "
            f"{clients} x {shards_per_client} = {shards}."
        )
        raise ValueError(msg)
    random = _generator(seed)
    by_label = _shuffled_by(labels, random)
    cuts = _even_cuts(len(labels), shards)
    owner = random.permutation(np.repeat(np.arange(clients), shards_per_client))
    owners = np.empty(len(labels), np.int64)
    owners[by_label] = np.repeat(owner, np.diff(cuts))
    return _from_owners(owners, clients)


def classes_per_client(
    labels: np.ndarray, clients: int, classes: int, *, seed: int
) -> Partition:
    """Gives every client the same number of classes, all different.

    The classes are spread evenly, and each is divided evenly among its holders. With
    fewer than one holder for a class, its examples belong to nobody.

    Args:
      labels: integers [n], the label of each example.
      clients: the number of clients.
      classes: the number of classes that each gets.
      seed: the seed of who holds what.

    Raises:
      ValueError: for more classes than there are, or fewer examples of a class than
        clients that hold it.
    """
    labels = _check_labels(labels, clients)
    names, labels = np.unique(labels, return_inverse=True)
    validate.at_least_one(classes=classes)
    validate.at_most(len(names), "the number of labels", classes=classes)
    random = _generator(seed)
    holds = _classes_of(clients, classes, len(names), random)
    holders = np.bincount(holds.ravel(), minlength=len(names))
    counts = np.bincount(labels)
    if np.any(holders > counts):
        worst = int(np.argmax(holders - counts))
        msg = (
            f"Expected a class to have an example for each of its holders, got "
            f"{counts[worst]} of class {names[worst]} for {holders[worst]} clients."
        )
        raise ValueError(msg)
    owners = np.full(len(labels), -1)
    by_label = np.split(_shuffled_by(labels, random), np.cumsum(counts)[:-1])
    for label, members in enumerate(by_label):
        own = np.flatnonzero(np.any(holds == label, axis=1))
        if len(own):
            cuts = _even_cuts(len(members), len(own))
            owners[members] = np.repeat(random.permutation(own), np.diff(cuts))
    return _from_owners(owners, clients)


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
    labels = _check_labels(labels, clients)
    if not isinstance(alpha, numbers.Real) or not 0 < alpha < np.inf:
        msg = f"Expected alpha to be a positive number, got alpha={alpha!r}."
        raise ValueError(msg)
    names, labels = np.unique(labels, return_inverse=True)
    random = _generator(seed)
    by_label = np.split(_shuffled_by(labels, random), np.cumsum(np.bincount(labels)))
    owners = np.empty(len(labels), np.int64)
    for members in by_label[: len(names)]:
        counts = _divided(len(members), _proportions(clients, alpha, random))
        owners[members] = np.repeat(np.arange(clients), counts)
    return _from_owners(_none_empty(owners, clients, random), clients)


def natural(ids) -> Partition:
    """Gives every distinct id a client, in sorted order, with its examples in order.

    >>> natural(np.array(["Romeo", "Juliet", "Romeo"])).indices
    array([1, 0, 2], dtype=int32)

    Args:
      ids: the owner of each example, an integer or a string [n].

    Raises:
      ValueError: for ids of another kind, or none.
    """
    ids = np.asarray(ids)
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iuUSOT":
        msg = (
            f"Expected ids to be integers or strings [n], got {ids.dtype} {ids.shape}."
        )
        raise ValueError(msg)
    names, owners = np.unique(ids, return_inverse=True)
    return _from_owners(owners, len(names))


def power_law_sizes(
    examples: int, clients: int, *, exponent: float, seed: int
) -> np.ndarray:
    """Returns int64 [clients] >= 1 of sum `examples`, by rank^-exponent, shuffled.

    Args:
      examples: the number of examples.
      clients: the number of clients.
      exponent: the exponent, at least 0; with 0 the sizes are even.
      seed: the seed of who gets which size.

    Raises:
      ValueError: for more clients than examples, or a negative exponent.
    """
    _check_counts(examples, clients)
    if not isinstance(exponent, numbers.Real) or not 0 <= exponent < np.inf:
        msg = f"Expected exponent to be a number >= 0, got exponent={exponent!r}."
        raise ValueError(msg)
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -float(exponent)
    shares = np.rint(weights * 2.0**PRECISION).astype(np.int64)
    sizes = 1 + _divided(examples - clients, shares)
    return _generator(seed).permutation(sizes)


PRECISION = 30  # bits of a proportion, so that the last digits of exp do not matter


def _proportions(clients: int, alpha: float, random: np.random.Generator) -> np.ndarray:
    """Returns int64 proportional to a draw from Dirichlet(alpha), the largest 2^30.

    If G ~ Gamma(alpha + 1) and U is uniform, then G U^(1/alpha) ~ Gamma(alpha); its
    logarithm is finite when the number itself would be zero for all clients.
    """
    alpha = max(float(alpha), 1e-100)  # 1 / alpha stays finite
    log = np.log(random.standard_gamma(alpha + 1, clients))
    log -= random.standard_exponential(clients) / alpha
    return np.rint(np.exp(log - log.max()) * 2.0**PRECISION).astype(np.int64)


def _divided(total: int, shares: np.ndarray) -> np.ndarray:
    """Returns integers of sum `total` in proportion to the shares, rounded."""
    ends = np.cumsum(shares)
    cuts = (ends / ends[-1] * total).astype(np.int64)
    return np.diff(cuts, prepend=0)


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
    rank = np.arange(len(owners)) - _starts(sizes)[owners[order]]
    spare = order[rank >= low]
    given = random.permutation(spare)[: len(poor)]
    owners = owners.copy()
    owners[given] = poor
    return owners


def _classes_of(
    clients: int, classes: int, total: int, random: np.random.Generator
) -> np.ndarray:
    """Returns `classes` different numbers below `total` for each client, balanced.

    In every block of `total` clients each class is held equally often: client i of a
    block holds the places i + s of a permutation, for distinct random shifts s.
    """
    blocks = -(-clients // total)
    table = np.tile(np.arange(total), (blocks, 1))
    orders = random.permuted(table, axis=1)
    shifts = random.permuted(table, axis=1)[:, :classes]
    places = (np.arange(total)[None, :, None] + shifts[:, None, :]) % total
    held = np.take_along_axis(orders[:, None, :], places, axis=2)
    return held.reshape(-1, classes)[:clients]


def _from_owners(owners: np.ndarray, clients: int) -> Partition:
    """Returns the partition in which example i belongs to `owners[i]`, -1 to nobody."""
    order = np.argsort(owners, kind="stable")
    nobody = np.searchsorted(owners[order], 0)
    sizes = np.bincount(owners[owners >= 0], minlength=clients)
    return Partition(order[nobody:].astype(np.int32), _starts(sizes))


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _even_cuts(total: int, parts: int) -> np.ndarray:
    return np.arange(parts + 1, dtype=np.int64) * total // parts


def _shuffled_by(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the examples sorted by label, in random order within a label."""
    order = random.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _generator(seed: int) -> np.random.Generator:
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0 or isinstance(seed, bool):
        msg = f"Expected seed to be an integer >= 0, got seed={seed!r}."
        raise ValueError(msg)
    return np.random.default_rng(number)


def _check_counts(examples: int, clients: int) -> None:
    validate.at_least_one(examples=examples, clients=clients)
    validate.at_most(2**31 - 1, "indices are int32", examples=examples)
    validate.at_most(examples, "the number of examples", clients=clients)


def _check_labels(labels, clients: int) -> np.ndarray:
    labels = _whole_numbers("labels", labels)
    _check_counts(len(labels), clients)
    return labels


def _whole_numbers(name: str, values) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        msg = f"Expected {name} to be integers [n], got {array.dtype} {array.shape}."
        raise ValueError(msg)
    return array.astype(np.int64)
