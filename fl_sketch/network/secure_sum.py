"""The server of a secure sum: it adds masked messages and takes the masks off the sum.

It keeps one sum, and no message of a client. A client that does not answer in time has
dropped out, and what it sends later is refused.
"""

import secrets
from collections.abc import Callable, Iterable

import numpy as np

from fl_sketch.network import formats, keys, masks, packing, shamir
from fl_sketch.network import neighbours as graph
from fl_sketch.network.formats import KEY, SEED, STAGES
from fl_sketch.network.terms import IDS, Terms, integers

RANDOM = secrets.SystemRandom()


class Server:
    """The server's side of one round, in the stages keys, shares, numbers and answer.

    `receive` takes a message of the current stage. `close` ends the stage and returns
    a message for each client that is still there. After the last stage, `total` is the
    sum. A message that is refused changes nothing.
    """

    def __init__(
        self,
        terms: Terms,
        clients: Iterable[int],
        shuffle: Callable[[list[int]], None] = RANDOM.shuffle,
    ):
        """Begins a round.

        Args:
          clients: the numbers of the cohort's clients.
          shuffle: orders a list at random, in place.

        Raises:
          ValueError: for clients that are not as many as the terms say, or not numbers
            below 2^32, each once.
        """
        self._expected = set(clients)
        if len(self._expected) != terms.clients:
            msg = f"Expected {terms.clients} clients, got {len(self._expected)}."
            raise ValueError(msg)
        for client in self._expected:
            integers(0, IDS - 1, client=client)
        self._terms, self._shuffle = terms, shuffle
        self._probe = keys.KeyPair(secrets.token_bytes(keys.KEY_BYTES))
        self._came: set[int] = set()
        self._closed = 0  # stages
        self._public: dict[int, tuple[bytes, ...]] = {}
        self._taken: set[bytes] = set()  # public keys
        self._group: dict[int, tuple[int, ...]] = {}
        self._digests: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # by receiver, then by owner
        self._sharing: set[int] = set()  # clients whose shares came
        self._alive: set[int] = set()  # clients whose numbers came
        self._shares: dict[int, dict[int, bytes]] = {}  # by owner, then by holder
        self._sum = np.zeros(terms.length, terms.word)

    @property
    def total(self) -> np.ndarray:
        """Returns the sum modulo 2^bits of those whose numbers came, uint32 [length].

        Raises:
          ValueError: before the last stage is closed.
        """
        if self._closed < len(STAGES):
            msg = f"Expected all stages to be closed, got {STAGES[self._closed]} open."
            raise ValueError(msg)
        return self._sum.astype(np.uint32)

    def receive(self, client: int, data: bytes) -> None:
        """Takes a client's message of the current stage.

        Args:
          client: the client that sent it, as the transport has authenticated it.

        Raises:
          ValueError: for a message that is not complete, is of another client, stage or
            round, or is repeated; for one of a client that dropped out.
        """
        stage = STAGES[self._closed] if self._closed < len(STAGES) else "no more"
        if client not in self._expected or client in self._came or stage == "no more":
            why = "twice" if client in self._came else "a message"
            msg = (
                f"Expected {stage} once from each client that is still in round "
                f"{self._terms.round}, got {why} from client {client}."
            )
            raise ValueError(msg)
        getattr(self, f"_read_{stage}")(client, data)
        self._came.add(client)

    def close(self) -> dict[int, bytes]:
        """Ends a stage, and returns a message for each client that answered in it.

        Raises:
          ValueError: if too few clients are left. The round is then lost.
        """
        stage = STAGES[self._closed] if self._closed < len(STAGES) else "no more"
        if len(self._came) < self._terms.threshold or stage == "no more":
            msg = (
                f"Expected {stage} from at least {self._terms.threshold} clients in "
                f"round {self._terms.round}, got {len(self._came)}."
            )
            raise ValueError(msg)
        replies = getattr(self, f"_close_{stage}")()
        self._closed += 1
        self._expected, self._came = self._came, set()
        return replies

    def _read_keys(self, client: int, data: bytes) -> None:
        kind = formats.KEYS
        (entry,) = formats.read_table(kind, self._terms, client, data, 1, 1)
        pair = entry[:2]
        if len({*pair} - self._taken) < 2:
            msg = f"Expected new keys from client {client}, got a key that is taken."
            raise ValueError(msg)
        try:
            for key in pair:
                self._probe.agree(key, keys.SEAL)
        except ValueError as error:
            msg = f"Refused keys of client {client}: {error}"
            raise ValueError(msg) from None
        self._public[client] = entry  # with its signature
        self._taken.update(pair)

    def _close_keys(self) -> dict[int, bytes]:
        neighbours = self._terms.neighbours
        self._group = graph.groups(sorted(self._came), neighbours, self._shuffle)
        return {
            client: formats.write_table(
                formats.ROSTER,
                self._terms,
                client,
                [(other, *self._public[other]) for other in group],
            )
            for client, group in self._group.items()
        }

    def _read_shares(self, client: int, data: bytes) -> None:
        group = self._group[client]
        entries = formats.read_table(
            formats.SHARES, self._terms, client, data, len(group), len(group)
        )
        self._require_clients("shares", client, entries, group)
        for holder, of_seed, of_key, sealed in entries:
            self._digests[client, holder] = (of_seed, of_key)
            self._sealed.setdefault(holder, {})[client] = sealed

    def _close_shares(self) -> dict[int, bytes]:
        self._sharing = self._came
        self._require_groups(self._sharing)
        replies = {}
        for client in self._sharing:
            sealed = self._sealed[client]
            entries = [(owner, sealed[owner]) for owner in self._sharing_with(client)]
            replies[client] = formats.write_table(
                formats.RELAY, self._terms, client, entries
            )
        self._sealed = {}
        return replies

    def _read_numbers(self, client: int, data: bytes) -> None:
        content = formats.read(formats.NUMBERS, self._terms, client, data)
        size = packing.size(self._terms.length, self._terms.bits)
        if len(content) != size:
            msg = f"Expected {size} bytes of client {client}, got {len(content)}."
            raise ValueError(msg)
        numbers = packing.unpacked(content, self._terms.length, self._terms.bits)
        self._sum += numbers.astype(self._sum.dtype)

    def _close_numbers(self) -> dict[int, bytes]:
        self._alive = self._came
        self._require_groups(self._sharing)
        return {
            client: formats.write_table(
                formats.SURVIVORS,
                self._terms,
                client,
                [(other,) for other in self._group[client] if other in self._alive],
            )
            for client in self._alive
        }

    def _read_answer(self, client: int, data: bytes) -> None:
        owners = self._sharing_with(client)
        entries = formats.read_table(
            formats.ANSWER, self._terms, client, data, len(owners), len(owners)
        )
        self._require_clients("answer", client, entries, owners)
        for owner, share in entries:
            of = SEED if owner in self._alive else KEY
            given = formats.digest(self._terms, owner, client, of, share)
            if given != self._digests[owner, client][of]:
                msg = (
                    f"Expected the share of client {owner} that client {client} was "
                    "sent, got another one."
                )
                raise ValueError(msg)
        for owner, share in entries:
            self._shares.setdefault(owner, {})[client] = share

    def _close_answer(self) -> dict[int, bytes]:
        self._require_groups(self._sharing)
        bare = self._sum.copy()
        for owner in sorted(self._sharing):
            shares = sorted(self._shares[owner].items())
            secret = shamir.combine(dict(shares[: self._terms.threshold]))
            if owner in self._alive:
                masks.add(bare, secret, self._terms.round, sign=-1)
            else:
                self._take_off_pairs(bare, owner, secret)
        self._sum = bare & bare.dtype.type(2**self._terms.bits - 1)
        self._shares = {}
        return {}

    def _take_off_pairs(self, numbers: np.ndarray, owner: int, secret: bytes) -> None:
        """Takes off `numbers` what others added against a client that dropped out."""
        pair = keys.KeyPair(secret)
        if pair.public != self._public[owner][1]:
            msg = f"Expected shares of the key of client {owner}, got others."
            raise ValueError(msg)
        for other in self._sharing_with(owner):
            if other in self._alive:
                key = pair.agree(self._public[other][1], keys.MASK)
                masks.add_pair(numbers, key, self._terms.round, owner, other)

    def _sharing_with(self, client: int) -> list[int]:
        """Returns those of a client's group whose shares came."""
        return [other for other in self._group[client] if other in self._sharing]

    def _require_clients(self, what: str, client: int, entries, expected) -> None:
        named = [entry[0] for entry in entries]
        if named != list(expected):
            msg = (
                f"Expected {what} of client {client} for {list(expected)}, got {named}."
            )
            raise ValueError(msg)

    def _require_groups(self, owners: Iterable[int]) -> None:
        """Raises unless enough of each owner's group answered in this stage."""
        for owner in owners:
            count = sum(other in self._came for other in self._group[owner])
            if count < self._terms.threshold:
                msg = (
                    f"Expected {self._terms.threshold} clients of the group of client "
                    f"{owner} to stay, got {count} in {STAGES[self._closed]}."
                )
                raise ValueError(msg)
