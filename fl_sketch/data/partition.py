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
`mixtures`            Hsu et al. 2019, Reddi et al. 2021, pfl-research's benchmarks
`natural`             speakers, writers, users
`power_law_sizes`     Li et al. 2020 (FedProx): few clients hold most examples
====================  ==========================================================
"""

import numbers

import numpy as np

from fl_sketch.core import validate
from fl_sketch.data import dealing
from fl_sketch.data.dealing import PRECISION
from fl_sketch.data.dealing import Partition as Partition
from fl_sketch.data.proportions import dirichlet as dirichlet
from fl_sketch.data.proportions import mixtures as mixtures


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
    dealing.check_counts(examples, clients)
    if sizes is None:
        sizes = np.diff(dealing.even_cuts(examples, clients))
    sizes = dealing.whole_numbers("sizes", sizes)
    if len(sizes) != clients or sizes.min() < 1 or sizes.sum() > examples:
        msg = (
            f"Expected sizes to be {clients} numbers >= 1 of sum <= {examples}, "
            f"got {len(sizes)}, the least {sizes.min()}, of sum {sizes.sum()}."
        )
        raise ValueError(msg)
    order = dealing.generator(seed).permutation(examples)[: sizes.sum()]
    return Partition(order.astype(np.int32), dealing.starts(sizes))


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
    sizes = dealing.whole_numbers("sizes", sizes)
    if sizes.min() < 1:
        msg = f"Expected sizes to be >= 1, got {sizes.min()}."
        raise ValueError(msg)
    drawn = dealing.generator(seed).integers(examples, size=sizes.sum(), dtype=np.int32)
    return Partition(drawn, dealing.starts(sizes))


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
    labels = dealing.check_labels(labels, clients)
    validate.at_least_one(shards_per_client=shards_per_client)
    shards = clients * shards_per_client
    if shards > len(labels):
        msg = (
            f"Expected clients x shards_per_client <= {len(labels)} examples, got "
            f"{clients} x {shards_per_client} = {shards}."
        )
        raise ValueError(msg)
    random = dealing.generator(seed)
    by_label = dealing.shuffled_by(labels, random)
    cuts = dealing.even_cuts(len(labels), shards)
    owner = random.permutation(np.repeat(np.arange(clients), shards_per_client))
    owners = np.empty(len(labels), np.int64)
    owners[by_label] = np.repeat(owner, np.diff(cuts))
    return dealing.from_owners(owners, clients)


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
    labels = dealing.check_labels(labels, clients)
    names, labels = np.unique(labels, return_inverse=True)
    validate.at_least_one(classes=classes)
    validate.at_most(len(names), "the number of labels", classes=classes)
    random = dealing.generator(seed)
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
    by_label = np.split(dealing.shuffled_by(labels, random), np.cumsum(counts)[:-1])
    for label, members in enumerate(by_label):
        own = np.flatnonzero(np.any(holds == label, axis=1))
        if len(own):
            cuts = dealing.even_cuts(len(members), len(own))
            owners[members] = np.repeat(random.permutation(own), np.diff(cuts))
    return dealing.from_owners(owners, clients)


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
    return dealing.from_owners(owners, len(names))


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
    dealing.check_counts(examples, clients)
    if not isinstance(exponent, numbers.Real) or not 0 <= exponent < np.inf:
        msg = f"Expected exponent to be a number >= 0, got exponent={exponent!r}."
        raise ValueError(msg)
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -float(exponent)
    shares = np.rint(weights * 2.0**PRECISION).astype(np.int64)
    sizes = 1 + dealing.divided(examples - clients, shares)
    return dealing.generator(seed).permutation(sizes)


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
