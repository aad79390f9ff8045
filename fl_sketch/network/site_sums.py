"""Secure sums within rounds: the terms of one, and a site's side of it.

Messages of integers (`privacy.integer_sums`) leave a site under masks alone. In each
exchange a site sends its public keys, its shares, its numbers and its answer, as
`secure_sum` has it. A site takes the threshold from its own config: it is at least the
number of clients whose noise the guarantee needs.

A sum that fails before the answers is tried again with new keys. A site answers for one
set of clients in an exchange, also after it or the coordinator has started again: two
sums of the same messages over different clients would show the difference. That is so
for another question too, unless its message has other noise of the site. So it keeps
a line of 80 bytes for each sum of a run. The coordinator keeps no keys after a sum.
"""

import dataclasses
import hashlib
import pathlib

import numpy as np

from fl_sketch.network import formats, lines, terms
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.formats import STAGES
from fl_sketch.network.identities import Identity
from fl_sketch.network.refused import Refused
from fl_sketch.network.secure_client import Client
from fl_sketch.network.terms import IDS, Terms

FILE = "answered_sums"  # lines of a sum's number and the digest of who is in it


def terms_of(talk: Conversation, number: int, exchange: int, clients: int) -> Terms:
    """Returns the terms of the sum of an exchange.

    Args:
      number: the number of the round.
      clients: the number of clients that are asked.

    Raises:
      Refused: for too few clients.
    """
    (field,) = talk.exchanges[exchange].up[0].sent
    if clients < talk.fewest:
        msg = f"Expected at least {talk.fewest} sites in a sum, got {clients}."
        raise Refused(msg)
    usual = terms.terms_of(
        round=number * len(talk.exchanges) + exchange,
        clients=clients,
        length=field.count,
        bits=field.bits,
    )
    threshold = max(usual.threshold, min(talk.fewest, usual.group))
    return dataclasses.replace(usual, threshold=threshold)


class Masked:
    """A site's messages in the secure sums of a run."""

    def __init__(
        self,
        folder: pathlib.Path,
        smallest: int = 2,
        sites: int = IDS,
        identity: Identity | None = None,
    ):
        """Takes the folder in which it notes its answers.

        Args:
          smallest: the least number of sites in a sum.
          sites: the number of sites of the run.
          identity: signs the site's public keys, and verifies those of others.
        """
        self._path, self._smallest, self._sites = folder / FILE, smallest, sites
        self._identity = identity
        self._answered = {name: digest for name, digest in lines.read(self._path)}
        self._stage = len(STAGES)

    def begin(
        self, terms: Terms, client: int, numbers: np.ndarray, asked: str = ""
    ) -> bytes:
        """Begins a sum with a message; returns this client's public keys.

        Args:
          asked: marks a message that is another one than the first of the round.

        Raises:
          Refused: for a sum of too few sites, or of more than the run has.
        """
        if not self._smallest <= terms.clients <= self._sites:
            msg = (
                f"Expected a sum of at least {self._smallest} sites, by the site's own "
                f"limit, and of at most {self._sites}, which the run has, got one of "
                f"{terms.clients}."
            )
            raise Refused(msg)
        self._client = Client(terms, client, identity=self._identity)
        self._number = f"{terms.round}{asked}"
        self._terms, self._numbers, self._stage = terms, numbers, 1
        return self._client.keys()

    @property
    def longest(self) -> int:
        """The bytes of the longest request of the sum; 0: there is none."""
        if self._stage == len(STAGES):
            return 0
        return max(one.down for one in formats.traffic(self._terms).values())

    def go_on(self, request: bytes) -> tuple[str, bytes]:
        """Returns the name of the next stage, and what this client sends in it.

        The masked numbers are without their header, as the ledger counts them.

        Raises:
          ValueError: for a request that is not of this stage.
          Refused: for an answer for other clients than before.
        """
        if self._stage == len(STAGES):
            msg = "Expected a secure sum that has begun, got none."
            raise Refused(msg)
        stage = STAGES[self._stage]
        if stage == "shares":
            sent = self._client.shares(request)
        elif stage == "numbers":
            self._require_many(formats.RELAY, request)
            whole = self._client.numbers(request, self._numbers)
            sent = whole[formats.HEADER.size :]
        else:
            self._require_many(formats.SURVIVORS, request)
            sent = self._client.answer(request)
            self._require_same(request)
        self._stage += 1
        return stage, sent

    def _require_many(self, kind: formats.Kind, table: bytes) -> None:
        """Raises if too few sites are in a sum, of those that this one masks with."""
        count = (len(table) - formats.HEADER.size) // kind.entry.size
        least = min(self._smallest, self._terms.group)
        if count < least:
            msg = f"Expected at least {least} sites in a sum, got {count}."
            raise Refused(msg)

    def _require_same(self, survivors: bytes) -> None:
        """Notes who is in a sum, on the disk; raises if it had others before."""
        number = self._number
        digest = hashlib.sha256(survivors).hexdigest()
        if number not in self._answered:
            lines.add(self._path, number, digest)
            self._answered[number] = digest
        elif self._answered[number] != digest:
            msg = (
                "Expected the clients for which this sum was answered before, got "
                "others, whose sum would show the difference."
            )
            raise Refused(msg)
