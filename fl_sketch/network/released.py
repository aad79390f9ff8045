"""The sums that a coordinator released: one for each exchange of a round.

A round is played again after a kill, and then other sites may answer. Two sums with the
same noise would show their difference, and a second sum with other noise would cost as
much as the first. So a round releases the same sum again, or none.
"""

import hashlib
import pathlib
from typing import Any

import jax
import numpy as np

from fl_sketch.core.protocols import Key
from fl_sketch.network import lines

FILE = "released"  # lines of a round and an exchange, and the digest of a sum


class Released:
    """Remembers sums by digests, which tell nothing without the run's secret."""

    def __init__(self, secret: Key, folder: pathlib.Path | None):
        """Takes the secret root, and the folder of the file; None: there is none."""
        self._secret = np.asarray(jax.random.key_data(secret)).tobytes()
        self._path = folder and folder / FILE
        known = lines.read(self._path) if self._path else []
        self._digests = {place: digest for place, digest in known}

    def other(self, number: int, exchange: int, known: Any) -> bytes:
        """Returns a digest of a sum if another one was released there, and else b"".

        Args:
          known: the sum, and what else the release follows from.
        """
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for leaf in jax.tree.leaves(known):
            digest.update(np.asarray(leaf).tobytes())
        place, found = f"{number}.{exchange}", digest.hexdigest()
        if place not in self._digests:
            if self._path:
                lines.add(self._path, place, found)
            self._digests[place] = found
        return b"" if self._digests[place] == found else digest.digest()
