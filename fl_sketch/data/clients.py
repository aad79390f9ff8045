"""Any arrays with the owner of each row: what `engine.simulate` trains on.

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

from fl_sketch.core import shown
from fl_sketch.data import partition
from fl_sketch.data.partition import Partition

LARGEST = 2**31  # devices hold integers of 32 bits


class Clients(NamedTuple):
    """Examples, and which client has which.

    Attributes:
      examples: a tree of arrays, each with a row for every example.
      partition: the examples of every client.
    """

    examples: Any
    partition: Partition

    def __repr__(self) -> str:
        """Returns how many clients and examples there are, and their types."""
        return f"Clients({self.partition.counts}: {shown.short(self.examples)})"

    @property
    def population(self) -> int:
        """The number of clients."""
        return self.partition.clients

    @property
    def sizes(self) -> np.ndarray:
        """The number of examples of each client, int64 [population]."""
        return self.partition.sizes


def clients(examples: Any, owners: Any) -> Clients:
    """Returns examples with the client of each.

    Args:
      examples: a tree of arrays, each with a row for every example, for instance a pair
        of inputs and targets. Arrays of numpy or jax, or memory-mapped ones; nothing is
        copied.
      owners: the owner of each row, integers or strings [n]: each distinct owner is a
        client, in sorted order. Or a `Partition`, such as `data.dirichlet` makes.

    Raises:
      TypeError, ValueError: in one line, for arrays that devices cannot hold, or owners
        that do not match the rows.
    """
    leaves, structure = jax.tree.flatten(examples)
    arrays = [
        leaf if isinstance(leaf, np.ndarray | jax.Array) else np.asarray(leaf)
        for leaf in leaves
    ]
    rows = {np.shape(array)[:1] for array in arrays}
    if len(rows) != 1 or rows in ({()}, {(0,)}):
        shapes = ", ".join(str(np.shape(array)) for array in arrays) or "none"
        msg = f"Expected arrays of as many rows each in examples, got shapes {shapes}."
        raise ValueError(msg)
    for array in arrays:
        _require_numbers(array)
    (count,) = rows.pop()
    if not isinstance(owners, Partition):
        owners = _by_owner(owners, count)
    _require_complete(owners, count)
    return Clients(jax.tree.unflatten(structure, arrays), owners)


def _by_owner(owners: Any, count: int) -> Partition:
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
    integers = [isinstance(i, int | np.integer) and i is not True for i in ids]
    return all(integers) or all(isinstance(name, str) for name in ids)


def _require_complete(owners: Partition, count: int) -> None:
    """Raises unless every client has examples, and these are among the `count`."""
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
    """Raises for an array that a device cannot hold exactly."""
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
