"""What all rules of dealing have in common: partitions, and how they are made."""

import operator
from typing import NamedTuple

import numpy as np

from fl_sketch.core import validate

PRECISION = 30  # bits of a proportion, so that the last digits of exp do not matter


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


def divided(total: int, shares: np.ndarray) -> np.ndarray:
    """Returns integers of sum `total` in proportion to the `shares`, rounded."""
    ends = np.cumsum(shares)
    cuts = (ends / ends[-1] * total).astype(np.int64)
    return np.diff(cuts, prepend=0)


def from_owners(owners: np.ndarray, clients: int) -> Partition:
    """Returns the partition in which example i is of `owners[i]`, -1 of nobody.

    Args:
      owners: the owner of each example, or -1.
      clients: the number of clients.
    """
    order = np.argsort(owners, kind="stable")
    nobody = np.searchsorted(owners[order], 0)
    sizes = np.bincount(owners[owners >= 0], minlength=clients)
    return Partition(order[nobody:].astype(np.int32), starts(sizes))


def starts(sizes: np.ndarray) -> np.ndarray:
    """Returns where examples of clients of these `sizes` begin, and where all end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def even_cuts(total: int, parts: int) -> np.ndarray:
    """Returns 0 and the ends of `parts` of `total` that are as even as can be."""
    return np.arange(parts + 1, dtype=np.int64) * total // parts


def shuffled_by(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the examples sorted by label, in random order within a label.

    Args:
      labels: integers [n], the label of each example.
      random: the source of the order.
    """
    order = random.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def generator(seed: int) -> np.random.Generator:
    """Returns numpy's generator of a `seed`, a whole number from zero on."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0 or isinstance(seed, bool):
        msg = f"Expected seed to be an integer >= 0, got seed={seed!r}."
        raise ValueError(msg)
    return np.random.default_rng(number)


def check_counts(examples: int, clients: int) -> None:
    """Raises unless int32 counts the `examples`, and each of the `clients` gets one."""
    validate.at_least_one(examples=examples, clients=clients)
    validate.at_most(2**31 - 1, "indices are int32", examples=examples)
    validate.at_most(examples, "the number of examples", clients=clients)


def check_labels(labels, clients: int) -> np.ndarray:
    """Returns the `labels` as int64; raises if they are too few for the `clients`."""
    labels = whole_numbers("labels", labels)
    check_counts(len(labels), clients)
    return labels


def whole_numbers(name: str, values) -> np.ndarray:
    """Returns the `values` as int64 [n]; raises, by their `name`, for others."""
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        msg = f"Expected {name} to be integers [n], got {array.dtype} {array.shape}."
        raise ValueError(msg)
    return array.astype(np.int64)
