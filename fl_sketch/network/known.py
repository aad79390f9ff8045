"""What both sides know of a round: counts of clients, means, and message layouts."""

from typing import Any, NamedTuple

from fl_sketch.network.layout import Layout


class Counts(NamedTuple):
    """How the clients of a round count, float32 each: see `protocols.Round`."""

    denominator: Any
    present: Any
    population: Any


class Heard(NamedTuple):
    """What is known of a round so far: means, and the server's replies between them."""

    means: tuple[Any, ...] = ()
    replies: tuple[Any, ...] = ()


class Exchange(NamedTuple):
    """What is sent in one exchange.

    Attributes:
      up: the layouts that a client's message may have, one of them in a round.
      mean: the shapes of the mean.
      down: the layout of what clients need of the mean, or of the replies after it.
      needed: for each leaf of the mean, whether clients need it.
      replies: the number of replies after the mean.
      told: whether clients get means in place of replies.
    """

    up: tuple[Layout, ...]
    mean: Any
    down: Layout
    needed: tuple[bool, ...]
    replies: int
    told: bool
