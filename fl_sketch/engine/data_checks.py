"""Checks of the examples of a run without privacy.

Private runs skip them: the client of an example that is not finite has no influence in
its rounds, and an error would reveal something about that client.
"""

import warnings
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.data import Clients
from fl_sketch.engine.data_uses import Place

BLOCK = 4096  # rows that are looked at together


def require_finite(clients: Clients) -> None:
    """Raises a ValueError for an example of a client that is not finite on devices.

    Devices hold floats of 32 bits: a larger number becomes infinite.
    """
    owned = _owned(clients)
    for where, array in _leaves(clients):
        if jnp.issubdtype(array.dtype, jnp.inexact):
            _require_finite(where, array, owned)


def _require_finite(where: str, array: np.ndarray, owned: np.ndarray) -> None:
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    for start in range(0, len(array), BLOCK):
        rows = array[start : start + BLOCK]
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(rows.astype(held, copy=False))
        if wrong.any():
            mine = owned[start : start + BLOCK].reshape(-1, *[1] * (rows.ndim - 1))
            _refuse(f"finite numbers of 32 bits in {where}", rows, wrong & mine, start)


def require_places(clients: Clients, places: Iterable[Place]) -> None:
    """Raises a ValueError for labels, or tokens, that are beyond what the loss has.

    It warns of those that count otherwise than is likely meant.
    """
    leaves, owned = [*_leaves(clients)], _owned(clients)
    for place in places:
        where, array = leaves[place.leaf]
        if not jnp.issubdtype(array.dtype, jnp.integer):
            continue
        mine = owned.reshape(-1, *[1] * (array.ndim - 1))
        what = f"integers in {where} from 0 to {place.count - 1}, as the loss takes "
        what += f"them for places among {place.count} numbers"
        beyond, below = (array >= place.count) & mine, (array < 0) & mine
        if place.refused:
            _refuse(what, array, beyond, 0)
            how, wrong = "counts from the end", below
        else:
            how, wrong = "has no place in the one-hot code", beyond | below
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            text = f"Expected {what}, got {array[wrong][0]} in row {row}, which {how}."
            warnings.warn(text, stacklevel=4)


def _leaves(clients: Clients) -> Iterator[tuple[str, np.ndarray]]:
    for path, leaf in jax.tree.leaves_with_path(clients.examples):
        yield f"examples{jax.tree_util.keystr(path)}", np.asarray(leaf)


def _owned(clients: Clients) -> np.ndarray:
    """Returns for each row whether a client has it."""
    count = len(jax.tree.leaves(clients.examples)[0])
    owned = np.zeros(count, bool)
    owned[clients.partition.indices] = True
    return owned


def _refuse(what: str, values: np.ndarray, wrong: np.ndarray, first: int) -> None:
    """Raises for the first value that is wrong, if there is one."""
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        msg = f"Expected {what}, got {values[place]} in row {first + place[0]}."
        raise ValueError(msg)
