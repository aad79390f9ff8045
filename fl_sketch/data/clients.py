"""Any arrays, and whose each row is: what `engine.simulate` trains on.

>>> import numpy as np
>>> from fl_sketch import data
>>> x, y = np.ones((6, 4), np.float32), np.array([0, 1, 0, 1, 0, 1])
>>> data.clients((x, y), owners=["ann", "bo", "bo", "cy", "ann", "bo"]).sizes
array([2, 3, 1])
>>> data.clients((x, y), data.dirichlet(y, 3, alpha=0.5, seed=0)).population
3
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.data import partition
from fl_sketch.data.partition import Partition

LARGEST = 2**31  # devices hold integers of 32 bits


class Clients(NamedTuple):
    """Examples, and which client has which.

    Attributes:
      examples: a tree of arrays, each with a row for every example.
      partition: the partition that says whose they are.
    """

    examples: Any
    partition: Partition

    @property
    def population(self) -> int:
        """How many clients there are."""
        return self.partition.clients

    @property
    def sizes(self) -> np.ndarray:
        """How many examples each client has, int64 [population]."""
        return self.partition.sizes


def clients(examples: Any, owners: Any) -> Clients:
    """Returns examples and whose they are.

    Args:
      examples: a tree of arrays, each with a row for every example; a pair of inputs
        and targets, say. numpy's, jax's, or mapped into memory; nothing is copied.
      owners: the owner of each row, integers or strings [n]: a client for every one of
        them, in sorted order. Or a `Partition`, as `data.dirichlet` makes it.

    Raises:
      TypeError, ValueError: in one line, for what no device can hold, or rows that
        nobody or too many own.
    """
    leaves, structure = jax.tree.flatten(examples)
    arrays = [
        leaf if isinstance(leaf, np.ndarray | jax.Array) else np.asarray(leaf)
        for leaf in leaves
    ]
    rows = {np.shape(array)[:1] for array in arrays}
    if len(rows) != 1 or rows in ({()}, {(0,)}):
        found = ", ".join(str(np.shape(array)) for array in arrays) or "none"
        msg = f"Expected arrays of as many rows each in examples, got shapes {found}."
        raise ValueError(msg)
    for array in arrays:
        _require_numbers(array)
    (count,) = rows.pop()
    if not isinstance(owners, Partition):
        owners = _owned(owners, count)
    _require_whole(owners, count)
    return Clients(jax.tree.unflatten(structure, arrays), owners)


def _owned(owners: Any, count: int) -> Partition:
    ids = np.asarray(owners)
    if ids.shape != (count,) or not _are_names(ids):
        msg = (
            f"Expected owners to be {count} integers or strings, one for each row of "
            f"examples, or a Partition, got {ids.dtype} of shape {ids.shape}."
        )
        raise ValueError(msg)
    return partition.natural(ids)


def _are_names(ids: np.ndarray) -> bool:
    """Returns whether all are integers or all strings, also in an array of objects."""
    if ids.dtype.kind != "O":
        return ids.dtype.kind in "iuUST"
    whole = [isinstance(one, int | np.integer) and one is not True for one in ids]
    return all(whole) or all(isinstance(one, str) for one in ids)


def _require_whole(owners: Partition, count: int) -> None:
    """Raises unless every client has examples, and all that it has are there."""
    starts, total = owners.starts, len(owners.indices)
    first, last = (0, -1) if not total else (owners.indices.min(), owners.indices.max())
    if not total or first < 0 or last >= count:
        msg = (
            f"Expected owners of {count} examples, got a partition of "
            f"{owners.clients} clients whose last example is {last}, the first {first}."
        )
        raise ValueError(msg)
    if starts[0] != 0 or starts[-1] != total or owners.sizes.min() < 1:
        msg = (
            "Expected owners to be a partition in which every client has an example, "
            f"got sizes from {owners.sizes.min()} to {owners.sizes.max()} of {total}."
        )
        raise ValueError(msg)


def _require_numbers(array: Any) -> None:
    """Raises for an array that a device would not hold, or not as it is."""
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.number, jnp.bool_)):
        msg = f"Expected examples to be numbers, got {array.dtype}: encode them first."
        raise TypeError(msg)
    if array.dtype.itemsize > 4 and array.dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        if not -LARGEST <= low <= high < LARGEST:
            msg = (
                f"Expected integers of examples to lie in [-2^31, 2^31), got {low} to "
                f"{high}."
            )
            raise ValueError(msg)
