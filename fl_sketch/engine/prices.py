"""What a client receives in a round and in a run, in bytes, from what is sent."""

from typing import Any, NamedTuple

import numpy as np

VISITS = 1000  # of which a mean is taken
GAPS = 100  # between a visit and the last one


class Follow(NamedTuple):
    """The bytes that a client downloads to replay the server's steps.

    Attributes:
      begin: to start after the first round, in addition to the parameters.
      missed: for every round since the last one.
      early: in addition, for each of the first `warmup` rounds.
      always: what clients read and cannot compute themselves.
    """

    begin: int
    missed: int
    early: int = 0
    warmup: int = 0
    always: int = 0


class Prices(NamedTuple):
    """The bytes that a client receives.

    Attributes:
      params: of the parameters.
      read: of other things that it reads, if it downloads the model.
      received: of means that it needs within the round; if any, instead of replies.
      replies: of the server's replies between exchanges.
      followed: whether clients replay the server's steps.
      once: of the arrays that do not train, which a client downloads on its first
        visit.
    """

    params: int
    read: int = 0
    received: int = 0
    replies: int = 0
    follow: Follow = Follow(0, 0)
    followed: bool = False
    once: int = 0

    def downloaded(self, reply: Any) -> Any:
        """Returns the bytes that clients receive from a server between exchanges."""
        return self.received or reply

    @property
    def within(self) -> int:
        """The bytes that a client receives during a round, after its download."""
        return self.downloaded(self.replies)

    @property
    def model(self) -> int:
        """The bytes that a client downloads if it does not replay steps."""
        return self.params + self.read

    @property
    def most(self) -> int:
        """The most bytes that a client downloads before its work in a round."""
        if self.followed:
            return self.params + self.follow.begin + self.follow.always
        return self.model

    def fetched(self, last: Any, received: Any, number: Any) -> np.ndarray:
        """Returns the bytes that clients fetch before their work in round `number`.

        Args:
          last: the round in which each of them last had the model; -1: never.
          received: bytes of that round's means that they received during it.
        """
        last = np.asarray(last, np.int64)
        if not self.followed:
            return np.full(last.shape, self.model, np.int64)
        whole = self.params + self.follow.begin
        # A client with the model of round m lacks the steps of rounds m to number - 1.
        since = self._sent(number) - self._sent(np.maximum(last, 0)) - received
        # All begin with the same parameters, and with nothing else.
        new = np.minimum(whole, self.params + self._sent(number))
        least = np.where(last < 0, new, np.clip(since, 0, whole))
        return least + self.follow.always

    def average(self, rounds: int, gap: float) -> float:
        """Returns the mean bytes that a client fetches before its work in a round.

        It is drawn in each of the `rounds` with probability 1 / `gap`.
        """
        times = min(rounds, VISITS)
        visits = (np.arange(times)[:, None] + 0.5) * rounds // times
        last = np.maximum(-1, visits - _gaps(gap))
        received = np.where(last < 0, 0, self.received)
        return self.fetched(last, received, visits.astype(np.int64)).mean().item()

    def _sent(self, rounds: Any) -> Any:
        """Returns the bytes that the server sent in the first `rounds` rounds."""
        follow = self.follow
        return follow.missed * rounds + follow.early * np.minimum(rounds, follow.warmup)


def _gaps(mean: float) -> np.ndarray:
    """Returns equally likely numbers of rounds between two visits of a client."""
    if mean <= 1:
        return np.ones(1)
    longer = (np.arange(GAPS) + 0.5) / GAPS  # how likely a longer gap is
    return np.ceil(np.log(longer) / np.log1p(-1 / mean))
