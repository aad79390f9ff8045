"""What all parties of a sum agree on before it begins.

>>> terms_of(round=7, clients=10, length=1000, bits=16)
Terms(round=7, clients=10, length=1000, bits=16, neighbours=9, threshold=7)
>>> few = terms_of(round=7, clients=1000, length=1000, bits=16)
>>> few.neighbours, few.threshold
(112, 58)
"""

import dataclasses
import hashlib
import operator
import struct

import numpy as np

from fl_sketch.network import neighbours as graph

IDS = 2**32  # clients are numbers below it
MOST_NUMBERS = 2**36  # a key expands to 2^38 bytes


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms of the sum of one round.

    A client shares its secrets with its group, which is the client and its neighbours.

    Attributes:
      round: the number of the round. Messages of another round are refused.
      clients: the number n of clients in the cohort.
      length: how many numbers a message has.
      bits: the number B; sums are modulo 2^B.
      neighbours: how many others a client masks with: n - 1, or an even number.
      threshold: how many of a group must stay to the end, and how many shares are a
        secret. It is more than half of a group.
    """

    round: int
    clients: int
    length: int
    bits: int
    neighbours: int
    threshold: int

    def __post_init__(self):
        integers(0, 2**64 - 1, round=self.round)
        integers(2, IDS, clients=self.clients)
        integers(1, MOST_NUMBERS, length=self.length)
        integers(1, 32, bits=self.bits)
        integers(1, self.clients - 1, neighbours=self.neighbours)
        if self.neighbours % 2 and self.neighbours != self.clients - 1:
            most = self.clients - 1
            msg = (
                f"Expected neighbours={most}, or an even number, got {self.neighbours}."
            )
            raise ValueError(msg)
        integers(self.group // 2 + 1, self.group, threshold=self.threshold)

    @property
    def group(self) -> int:
        """Returns the size of a group."""
        return self.neighbours + 1

    @property
    def word(self) -> np.dtype:
        """Returns the smallest type that has `bits`; its sums wrap."""
        return np.dtype(next(f"<u{n}" for n in (1, 2, 4) if self.bits <= 8 * n))

    @property
    def fingerprint(self) -> bytes:
        """Returns 8 bytes that identify all terms except the round."""
        rest = dataclasses.astuple(self)[1:]
        return hashlib.blake2b(struct.pack("<5Q", *rest), digest_size=8).digest()


def terms_of(
    *,
    round: int,
    clients: int,
    length: int,
    bits: int,
    colluding: float = 0.2,
    dropping: float = 0.2,
) -> Terms:
    """Returns terms with the usual neighbours and threshold.

    Args:
      colluding: the fraction of the cohort that may collude with the server.
      dropping: the fraction of the cohort that may drop out.
    """
    integers(2, IDS, clients=clients)
    neighbours, threshold = graph.usual(clients, colluding, dropping)
    return Terms(round, clients, length, bits, neighbours, threshold)


def integers(low: int, high: int, **named: int) -> None:
    """Raises a ValueError unless every named argument is an integer in [low, high]."""
    for name, value in named.items():
        try:
            good = low <= operator.index(value) <= high and not isinstance(value, bool)
        except TypeError:
            good = False
        if not good:
            msg = f"Expected {name} to be an integer in [{low}, {high}], got {value!r}."
            raise ValueError(msg)
