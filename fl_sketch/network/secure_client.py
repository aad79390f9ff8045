"""A client of a secure sum: four messages out, three in, all bytes.

A client is for one round and has its own keys. It answers each request once, and
reveals a share of another client's seed or of that client's key, never both.
"""

import os
from collections.abc import Callable

import numpy as np

from fl_sketch.network import formats, keys, masks, packing, shamir
from fl_sketch.network.identities import UNSIGNED, Identity
from fl_sketch.network.terms import IDS, Terms, integers


class Client:
    """The client's side of one round.

    The methods are called in the order `keys`, `shares`, `numbers`, `answer`. A message
    that is refused changes nothing.
    """

    def __init__(
        self,
        terms: Terms,
        client: int,
        random: Callable[[int], bytes] = os.urandom,
        identity: Identity | None = None,
    ):
        """Draws the keys of a round.

        Args:
          client: the number of this client.
          random: `(count) -> bytes`; only tests have another than the default.
          identity: signs this client's keys, and verifies those of others. A sum from
            which a client drops out after its shares then fails: a server that tells
            clients of different drop-outs would learn keys of masks. None: the server
            is trusted with both.
        """
        integers(0, IDS - 1, client=client)
        self._terms, self._client, self._random = terms, client, random
        self._identity = identity
        self._seals = keys.KeyPair(random(keys.KEY_BYTES))
        self._masks = keys.KeyPair(random(keys.KEY_BYTES))
        self._seed = random(keys.KEY_BYTES)
        self._public: dict[int, bytes] = {}  # for masks
        self._sealing: dict[int, bytes] = {}  # the key that seals, by client
        self._held: dict[int, tuple[bytes, bytes]] = {}  # shares of seed and key
        self._done = 0  # stages

    def keys(self) -> bytes:
        """Returns the public keys of this client."""
        self._require("keys")
        pair, signature = (self._seals.public, self._masks.public), UNSIGNED
        if self._identity:
            text = formats.to_sign(self._terms, self._client, pair)
            signature = self._identity.sign(text)
        self._done += 1
        entry = (*pair, signature)
        return formats.write_table(formats.KEYS, self._terms, self._client, [entry])

    def shares(self, roster: bytes) -> bytes:
        """Returns shares of this client's secrets, sealed for each of its group.

        Raises:
          ValueError: for a roster that is not whole, has too few clients, or has a key
            twice, not this client's own, or one that its client did not sign.
        """
        self._require("shares")
        entries = self._read(formats.ROSTER, roster)
        public = {client: pair for client, *pair, _ in entries}
        if self._identity:
            for client, *pair, signature in entries:
                text = formats.to_sign(self._terms, client, pair)
                self._identity.verify(client, text, signature)
        if public.get(self._client) != [self._seals.public, self._masks.public]:
            msg = f"Expected a roster with the keys of client {self._client}."
            raise ValueError(msg)
        if len({key for pair in public.values() for key in pair}) < 2 * len(public):
            msg = f"Expected the roster of client {self._client} to have no key twice."
            raise ValueError(msg)
        sealing = {
            client: self._seals.agree(pair[0], keys.SEAL)
            for client, pair in public.items()
        }
        data = self._sealed_shares(sealing)
        self._sealing = sealing
        self._public = {client: pair[1] for client, pair in public.items()}
        self._done += 1
        return data

    def numbers(self, relay: bytes, message: np.ndarray) -> bytes:
        """Returns the masked message.

        Args:
          message: unsigned integers below 2^bits, [length].

        Raises:
          ValueError: for a relay that is not whole, is of too few clients, or has
            shares that are not those sealed for this client; for another message.
        """
        self._require("numbers")
        terms = self._terms
        packing.require(message, terms.length, terms.bits)
        numbers = message.astype(terms.word)
        sealed = dict(self._read(formats.RELAY, relay))
        self._require_known("relay", sealed, self._public)
        held = {owner: self._unsealed(owner, text) for owner, text in sealed.items()}
        masks.add(numbers, self._seed, terms.round)
        for other in held:
            if other != self._client:
                key = self._masks.agree(self._public[other], keys.MASK)
                masks.add_pair(numbers, key, terms.round, self._client, other)
        numbers &= terms.word.type(2**terms.bits - 1)
        content = packing.packed(numbers, terms.bits)
        self._held = held
        self._done += 1
        return formats.write(formats.NUMBERS, terms, self._client, content)

    def answer(self, survivors: bytes) -> bytes:
        """Returns a share of each survivor's seed, and of each other client's key.

        The client then forgets its secrets and shares.

        Raises:
          ValueError: for survivors that are too few, did not share, or are not with
            this client; with an identity, also if one that shared is missing.
        """
        self._require("answer")
        entries = self._read(formats.SURVIVORS, survivors)
        alive = {client for (client,) in entries}
        self._require_known("survivors", alive, self._held)
        if self._identity and alive != {*self._held}:
            msg = (
                f"Expected all clients that shared with client {self._client} to be "
                "survivors where keys are signed: no share of a key is sent there."
            )
            raise ValueError(msg)
        answers = [
            (owner, shares[formats.SEED if owner in alive else formats.KEY])
            for owner, shares in self._held.items()
        ]
        self._done += 1
        self._held, self._sealing, self._seed = {}, {}, b""
        del self._seals, self._masks
        return formats.write_table(formats.ANSWER, self._terms, self._client, answers)

    def _require(self, stage: str) -> None:
        """Raises unless a stage is the next one."""
        if formats.STAGES[self._done :][:1] != (stage,):
            done = ", ".join(formats.STAGES[: self._done]) or "nothing"
            msg = (
                f"Expected each of {', '.join(formats.STAGES)} once and in this order, "
                f"got a request for {stage} after client {self._client} sent {done}."
            )
            raise ValueError(msg)

    def _read(self, kind: formats.Kind, data: bytes) -> list[tuple]:
        few, many = self._terms.threshold, self._terms.group
        return formats.read_table(kind, self._terms, self._client, data, few, many)

    def _require_known(self, what: str, named, known) -> None:
        """Raises unless all named clients are known, and this client is one of them."""
        strange = sorted(set(named) - set(known))
        if strange or self._client not in named:
            msg = (
                f"Expected {what} of client {self._client} to name it and others of "
                f"{sorted(known)}, got {sorted(named)}."
            )
            raise ValueError(msg)

    def _sealed_shares(self, sealing: dict[int, bytes]) -> bytes:
        terms, own = self._terms, self._client
        split = [
            shamir.split(secret, list(sealing), terms.threshold, self._random)
            for secret in (self._seed, self._masks.secret)
        ]
        entries = []
        for holder, key in sealing.items():
            both = [shares[holder] for shares in split]
            digests = [
                formats.digest(terms, own, holder, of, share)
                for of, share in enumerate(both)
            ]
            sealed = keys.seal(key, terms.round, own, holder, b"".join(both))
            entries.append((holder, *digests, sealed))
        return formats.write_table(formats.SHARES, terms, own, entries)

    def _unsealed(self, owner: int, sealed: bytes) -> tuple[bytes, bytes]:
        both = keys.unseal(
            self._sealing[owner], self._terms.round, owner, self._client, sealed
        )
        return both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :]
