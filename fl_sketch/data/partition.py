"""Partitions: which examples belong to which client.

>>> labels = np.array([0, 0, 0, 1, 1, 1])
>>> shares = label_shards(labels, 3, 1, seed=0)
>>> [labels[shares.of(client)].tolist() for client in range(3)]
[[0, 0], [0, 1], [1, 1]]

Every rule is one vectorised pass: a million clients take a second or two. The same
seed gives the same partition everywhere: random integers are those of numpy's PCG64,
and proportions are rounded to multiples of 2^-30 before they decide anything.
"""

from typing import Any, NamedTuple

import numpy as np

from fl_sketch.core import validate

FEWEST = 10  # examples of a client of `capped_dirichlet`
DRAWS = 1000  # until it gives up
PRECISION = 30  # bits of a proportion, so that the last digits of exp do not matter


class Partition(NamedTuple):
    """The examples of every client, one client after the other.

    Client k holds `indices[starts[k] : starts[k + 1]]`.

    Attributes:
      indices: int32 [total], positions in the data set.
      starts: int64 [clients + 1], increasing from 0 to total.
    """

    indices: np.ndarray
    starts: np.ndarray

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """The number of examples of each client, int64 [clients]."""
        return np.diff(self.starts)

    def __repr__(self) -> str:
        """Returns how many clients and examples there are."""
        return f"Partition({self.counts})"

    @property
    def counts(self) -> str:
        """How many clients there are, and how many examples they have, in words."""
        sizes, total = self.sizes, len(self.indices)
        if not len(sizes):
            return "no clients"
        each = f"{sizes.min()} to {sizes.max()}"
        return f"{self.clients} clients of {each} examples, {total} in all"

    def of(self, client: int) -> np.ndarray:
        """Returns the examples of one client, int32 [sizes[client]]."""
        return self.indices[self.starts[client] : self.starts[client + 1]]


def iid(examples: int, clients: int, *, sizes=None, seed: int) -> Partition:
    """Shuffles the examples and splits them evenly, or gives `sizes[k]` to client k."""
    _require_counts(examples, clients)
    if sizes is None:
        sizes = np.diff(_even_cuts(examples, clients))
    sizes = np.asarray(sizes)
    if sizes.shape != (clients,) or sizes.min() < 1 or sizes.sum() > examples:
        msg = f"sizes must be {clients} numbers >= 1 of sum <= {examples}, got {sizes}."
        raise ValueError(msg)
    order = np.random.default_rng(seed).permutation(examples)[: sizes.sum()]
    return Partition(order.astype(np.int32), _starts(sizes))


def label_shards(
    labels: np.ndarray, clients: int, shards_per_client: int, *, seed: int
) -> Partition:
    """Sorts by label, cuts into equal shards, gives each client the same number.

    McMahan et al. (2017) have 2 shards a client, and Das et al. (2022) have 5.

    Examples of one label are shuffled first. A shard may straddle two labels.
    """
    labels = _labels(labels, clients)
    shards = clients * shards_per_client
    if shards > len(labels):
        msg = f"{clients} clients x {shards_per_client} shards are more than "
        raise ValueError(msg + f"{len(labels)} examples.")
    random = np.random.default_rng(seed)
    by_label = _shuffled_by(labels, random)
    cuts = _even_cuts(len(labels), shards)
    owner = random.permutation(np.repeat(np.arange(clients), shards_per_client))
    owners = np.empty(len(labels), np.int64)
    owners[by_label] = np.repeat(owner, np.diff(cuts))
    return _from_owners(owners, clients)


def classes_per_client(
    labels: np.ndarray, clients: int, classes: int, *, seed: int
) -> Partition:
    """Gives every client the same number of classes, all different, as FedSKETCH does.

    The classes are spread evenly, and each is divided evenly among its holders. If
    there are fewer holders than classes, some classes are left out.
    """
    names, labels = np.unique(_labels(labels, clients), return_inverse=True)
    validate.at_most(len(names), "the number of labels", classes=classes)
    random = np.random.default_rng(seed)
    holds = _balanced_classes(clients, classes, len(names), random)
    holders = np.bincount(holds.ravel(), minlength=len(names))
    counts = np.bincount(labels)
    if np.any(holders > counts):
        worst = int(np.argmax(holders - counts))
        msg = f"Class {names[worst]} has {counts[worst]} examples for {holders[worst]} "
        raise ValueError(msg + "clients.")
    owners = np.full(len(labels), -1)
    by_label = np.split(_shuffled_by(labels, random), np.cumsum(counts)[:-1])
    for label, members in enumerate(by_label):
        holding = np.flatnonzero(np.any(holds == label, axis=1))
        if len(holding):
            cuts = _even_cuts(len(members), len(holding))
            owners[members] = np.repeat(random.permutation(holding), np.diff(cuts))
    return _from_owners(owners, clients)


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, *, seed: int
) -> Partition:
    """Divides each class among the clients in proportions drawn from Dirichlet(alpha).

    Small alpha: each class belongs to few clients; large alpha: evenly spread. No
    alpha is too small: proportions are drawn as logarithms, so none is NaN. A client
    without examples is given one by those who have most.
    """
    names, labels = np.unique(_labels(labels, clients), return_inverse=True)
    random = np.random.default_rng(seed)
    by_label = np.split(_shuffled_by(labels, random), np.cumsum(np.bincount(labels)))
    owners = np.empty(len(labels), np.int64)
    for members in by_label[: len(names)]:
        shares = _rounded(_log_proportions((clients,), alpha, random), axis=0)
        counts = _divided(len(members), shares)
        owners[members] = np.repeat(np.arange(clients), counts)
    return _from_owners(_fill_empty(owners, clients, random), clients)


def capped_dirichlet(
    labels: np.ndarray, clients: int, alpha: float, *, seed: int
) -> Partition:
    """Divides each class as `dirichlet` does, among the clients that are not full.

    A client that has an equal share of all examples, or more, gets none of the next
    class. All is drawn again until every client has `FEWEST` examples.

    Reference: Li et al. (2022), Federated Learning on Non-IID Data Silos, whose code
    has the rule.
    """
    names, labels = np.unique(_labels(labels, clients), return_inverse=True)
    validate.at_most(len(labels), "the number of examples", needed=clients * FEWEST)
    random = np.random.default_rng(seed)
    for _ in range(DRAWS):
        held = np.zeros(clients, np.int64)
        by_label = np.split(
            _shuffled_by(labels, random), np.cumsum(np.bincount(labels))
        )
        owners = np.empty(len(labels), np.int64)
        for members in by_label[: len(names)]:
            log = _log_proportions((clients,), alpha, random)
            log[held * clients >= len(labels)] = -np.inf
            counts = _divided(len(members), _rounded(log, axis=0))
            owners[members] = np.repeat(np.arange(clients), counts)
            held += counts
        if held.min() >= FEWEST:
            return _from_owners(owners, clients)
    msg = f"Expected alpha with which {clients} clients of {len(labels)} examples have "
    raise ValueError(msg + f"{FEWEST} each, got alpha={alpha} after {DRAWS} draws.")


def mixtures(labels: np.ndarray, clients: int, alpha: float, *, seed: int) -> Partition:
    """Gives all clients equally many examples, each from its own mixture of classes.

    A client's shares of the classes are drawn from Dirichlet(alpha), and the class of
    each of its examples is drawn from these shares. When a class runs out, the first
    clients get what is left of it, and the others draw again among the other classes.

    Reference: Hsu et al. (2019), section 3.
    """
    names, labels = np.unique(_labels(labels, clients), return_inverse=True)
    random = np.random.default_rng(seed)
    by_label = _shuffled_by(labels, random)
    shares = _log_proportions((clients, len(names)), alpha, random)
    missing = np.diff(_even_cuts(len(labels), clients))
    left = np.bincount(labels)
    held = np.zeros((clients, len(names)), np.int64)
    while missing.any():  # each pass uses up a class, or nothing is missing after it
        wanted = _class_counts(np.where(left > 0, shares, -np.inf), missing, random)
        cuts = np.minimum(np.cumsum(wanted, axis=0), left)
        taken = np.diff(cuts, axis=0, prepend=0)
        held, missing, left = held + taken, missing - taken.sum(1), left - taken.sum(0)
    owners = np.empty(len(labels), np.int64)
    owners[by_label] = np.repeat(
        np.tile(np.arange(clients), len(names)), held.T.ravel()
    )
    return _from_owners(owners, clients)


def natural(ids) -> Partition:
    """Gives every distinct id, an integer or a string, a client, in sorted order.

    >>> natural(np.array(["Romeo", "Juliet", "Romeo"])).indices
    array([1, 0, 2], dtype=int32)
    """
    names, owners = np.unique(np.asarray(ids), return_inverse=True)
    return _from_owners(owners, len(names))


def power_law_sizes(
    examples: int, clients: int, *, exponent: float, seed: int
) -> np.ndarray:
    """Returns int64 [clients] >= 1 of sum `examples`, by rank^-exponent, shuffled."""
    _require_counts(examples, clients)
    validate.in_range(0, 1e300, exponent=exponent)
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -float(exponent)
    shares = np.rint(weights * 2.0**PRECISION).astype(np.int64)
    sizes = 1 + _divided(examples - clients, shares)
    return np.random.default_rng(seed).permutation(sizes)


def _from_owners(owners: np.ndarray, clients: int) -> Partition:
    """Returns the partition in which client `owners[i]` has example i; -1: none."""
    order = np.argsort(owners, kind="stable")
    unowned = np.searchsorted(owners[order], 0)
    sizes = np.bincount(owners[owners >= 0], minlength=clients)
    return Partition(order[unowned:].astype(np.int32), _starts(sizes))


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _even_cuts(total: int, parts: int) -> np.ndarray:
    """Returns 0 and the ends of `parts` of `total` that are as even as can be."""
    return np.arange(parts + 1, dtype=np.int64) * total // parts


def _divided(total: int, shares: np.ndarray) -> np.ndarray:
    """Returns integers of sum `total` in proportion to the `shares`, rounded."""
    ends = np.cumsum(shares)
    cuts = (ends / ends[-1] * total).astype(np.int64)
    return np.diff(cuts, prepend=0)


def _shuffled_by(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the examples sorted by label, in random order within a label."""
    order = random.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _balanced_classes(
    clients: int, classes: int, total: int, random: np.random.Generator
) -> np.ndarray:
    """Returns `classes` different numbers below `total` for each client, balanced.

    In every block of `total` clients each class is held equally often: client i of a
    block holds positions i + s of a permutation, for distinct random shifts s.
    """
    blocks = -(-clients // total)
    table = np.tile(np.arange(total), (blocks, 1))
    orders = random.permuted(table, axis=1)
    shifts = random.permuted(table, axis=1)[:, :classes]
    positions = (np.arange(total)[None, :, None] + shifts[:, None, :]) % total
    held = np.take_along_axis(orders[:, None, :], positions, axis=2)
    return held.reshape(-1, classes)[:clients]


def _log_proportions(
    shape: tuple[int, ...], alpha: float, random: np.random.Generator
) -> np.ndarray:
    """Returns logarithms of numbers in proportion to draws from Dirichlet(alpha).

    If G ~ Gamma(alpha + 1) and U is uniform, then G U^(1/alpha) ~ Gamma(alpha). Its
    logarithm is finite where the number itself would be zero for all clients.
    """
    validate.in_range(np.finfo(float).tiny, 1e300, alpha=alpha)
    alpha = max(float(alpha), 1e-100)  # 1 / alpha stays finite
    log = np.log(random.standard_gamma(alpha + 1, shape))
    return log - random.standard_exponential(shape) / alpha


def _rounded(log: np.ndarray, axis: int) -> np.ndarray:
    """Returns int64 in proportion to exp(log), the largest along the axis 2^30."""
    shares = np.exp(log - log.max(axis, keepdims=True))
    return np.rint(shares * 2.0**PRECISION).astype(np.int64)


def _class_counts(
    log: np.ndarray, counts: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Returns how often each client draws each class, int64 [clients, classes].

    Client k draws `counts[k]` times, in proportion to exp(log[k]).
    """
    ends = np.cumsum(_rounded(log, axis=1), axis=1)
    owner = np.repeat(np.arange(len(log)), counts)
    position = random.integers(ends[owner, -1])
    drawn = np.zeros(log.shape, np.int64)
    before = np.zeros(len(log), np.int64)
    for label in range(log.shape[1]):
        below = np.bincount(owner[position < ends[owner, label]], minlength=len(log))
        drawn[:, label] = below - before
        before = below
    return drawn


def _fill_empty(
    owners: np.ndarray, clients: int, random: np.random.Generator
) -> np.ndarray:
    """Returns owners in which clients without examples got one of the largest.

    The largest give what they have above a level: the highest that is enough.
    """
    sizes = np.bincount(owners, minlength=clients)
    poor = np.flatnonzero(sizes == 0)
    low, high = 1, int(sizes.max())  # the examples above level `low` are enough
    while high - low > 1:
        middle = (low + high) // 2
        enough = np.maximum(sizes - middle, 0).sum() >= len(poor)
        low, high = (middle, high) if enough else (low, middle)
    order = np.lexsort((random.permutation(len(owners)), owners))
    rank = np.arange(len(owners)) - _starts(sizes)[owners[order]]
    spare = order[rank >= low]
    owners = owners.copy()
    owners[random.permutation(spare)[: len(poor)]] = poor
    return owners


def _require_counts(examples: int, clients: int) -> None:
    validate.at_least_one(examples=examples, clients=clients)
    validate.at_most(2**31 - 1, "indices are int32", examples=examples)
    validate.at_most(examples, "the number of examples", clients=clients)


def _labels(labels: Any, clients: int) -> np.ndarray:
    """Returns labels as int64 [n], at least one for each client."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        msg = f"Expected labels to be integers [n], got {labels.dtype} {labels.shape}."
        raise ValueError(msg)
    _require_counts(len(labels), clients)
    return labels.astype(np.int64)
