"""Examples that clients keep back from training, to be measured on.

>>> from fl_sketch.data.partition import iid
>>> kept, held = held_out(iid(10, 2, seed=0), 0.4, seed=0)
>>> kept.sizes, held.sizes
(array([3, 3]), array([2, 2]))
"""

import numpy as np

from fl_sketch.data.partition import Partition

PURPOSE = 0x4E1D  # apart from the seed's other uses


def held_out(
    shares: Partition, share: float, *, seed: int
) -> tuple[Partition, Partition]:
    """Returns what clients train on, and what they hold back, a random part of theirs.

    Who has two examples or more holds one back at least and trains on one at least.

    Args:
      shares: the examples of every client.
      share: the share that is held back, in [0, 1).
      seed: the seed of the choice.
    """
    sizes, total = shares.sizes, len(shares.indices)
    if not share:
        return shares, _part(shares.indices[:0], np.zeros_like(sizes))
    count = np.clip(np.floor(share * sizes + 1e-9).astype(np.int64), 1, None)
    count = np.minimum(count, np.maximum(sizes - 1, 0))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    random = np.random.default_rng([PURPOSE, seed]).random(total)
    places = np.arange(total) - np.repeat(shares.starts[:-1], sizes)
    ranks = np.empty(total, np.int64)
    ranks[np.lexsort((random, owners))] = places  # of each among its client's own
    back = ranks < np.repeat(count, sizes)
    return _part(shares.indices[~back], sizes - count), _part(
        shares.indices[back], count
    )


def _part(indices: np.ndarray, sizes: np.ndarray) -> Partition:
    return Partition(indices, np.concatenate([[0], np.cumsum(sizes)]))
