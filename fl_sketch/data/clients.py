"""Any arrays with the owner of each row: what `simulate` trains on.

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
        copied. Devices hold them with 32 bits: float64 is rounded to float32.
      owners: the owner of each row, integers or strings [n]: each distinct owner is a
        client, in sorted order. Or a `Partition`, such as `data.dirichlet` makes.
    """
    leaves, structure = jax.tree.flatten(examples)
    arrays = [x if isinstance(x, jax.Array) else np.asarray(x) for x in leaves]
    rows = {np.shape(array)[:1] for array in arrays}
    if len(rows) != 1 or rows in ({()}, {(0,)}):
        shapes = ", ".join(str(np.shape(array)) for array in arrays) or "none"
        msg = f"All arrays of examples must have as many rows, got shapes {shapes}."
        raise ValueError(msg)
    for array in arrays:
        if not jnp.issubdtype(array.dtype, jnp.number) and array.dtype != bool:
            msg = f"Examples must be numbers, got {array.dtype}: encode them first."
            raise TypeError(msg)
        if array.dtype.itemsize > 4 and array.dtype.kind in "iu":
            low, high = int(array.min()), int(array.max())
            if not -LARGEST <= low <= high < LARGEST:
                msg = f"Integers of examples have 32 bits, got {low} to {high}."
                raise ValueError(msg)
    (count,) = rows.pop()
    if not isinstance(owners, Partition):
        ids = np.asarray(owners)
        if ids.shape != (count,) or not _are_names(ids):
            msg = f"owners must be {count} integers or strings, or a Partition, got "
            raise ValueError(msg + f"{ids.dtype} of shape {ids.shape}.")
        owners = partition.natural(ids)
    inside = len(owners.indices) and owners.indices.min() >= 0
    if not inside or owners.indices.max() >= count or owners.sizes.min() < 1:
        msg = f"owners of {count} examples must give one to each client, got {owners}."
        raise ValueError(msg)
    return Clients(jax.tree.unflatten(structure, arrays), owners)


def _are_names(ids: np.ndarray) -> bool:
    """Returns whether all are integers or all strings, also in an array of objects."""
    if ids.dtype.kind != "O":
        return ids.dtype.kind in "iuUST"
    integers = [isinstance(i, int | np.integer) and i is not True for i in ids]
    return all(integers) or all(isinstance(name, str) for name in ids)
