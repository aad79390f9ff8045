"""Examples that clients keep back from training, to be measured on."""

import numpy as np

from fl_sketch.data.partition import Partition

PURPOSE = 0x4E1D  # separates these draws from the seed's other uses


def held_out(
    shares: Partition, share: float, *, seed: int
) -> tuple[Partition, Partition]:
    """Splits a `share`, in [0, 1), of every client's examples off, at random.

    A client with two examples or more holds back at least one and trains on at least
    one. Returns what clients train on, and what they hold back.
    """
    sizes, total = shares.sizes, len(shares.indices)
    if not share:
        return shares, Partition(shares.indices[:0], np.zeros_like(shares.starts))
    count = np.clip(np.floor(share * sizes + 1e-9).astype(np.int64), 1, None)
    count = np.minimum(count, np.maximum(sizes - 1, 0))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    random = np.random.default_rng([PURPOSE, seed]).random(total)
    ranks = np.empty(total, np.int64)  # of each example, within its client
    ranks[np.lexsort((random, owners))] = np.arange(total) - shares.starts[owners]
    held = ranks < count[owners]
    train, back = (
        Partition(shares.indices[chosen], np.concatenate([[0], np.cumsum(kept)]))
        for chosen, kept in ((~held, sizes - count), (held, count))
    )
    return train, back
