"""A run in short calls: as many rounds at a time as take about a second.

Between two calls somebody looks at signals and moves a bar; how a run is cut into
calls cannot change a bit of it.
"""

import enum
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

SECONDS = 1.0  # about how long a call takes
MOST = 4096  # rounds of a call, for whose reports there is room


class Ask(enum.IntEnum):
    """What somebody asks for between two calls; of several the largest counts."""

    NOTHING = 0
    SAVE = 1
    STOP = 2


class Call(NamedTuple):
    """What came of some rounds.

    Attributes:
      state: the state after them.
      first: the number of rounds before them.
      done: the number of rounds after them.
      reports: the reports of these rounds, on the host.
      seconds: the time that they took.
      asked: what somebody asked for meanwhile.
    """

    state: Any
    first: int
    done: int
    reports: Any
    seconds: float
    asked: Ask = Ask.NOTHING


def in_calls(
    advance: Callable[[Any, int, int], tuple[Any, Any]],
    state: Any,
    rounds: tuple[int, int],
    *,
    every: Sequence[int],
    ahead: Callable[[int], None] = lambda done: None,
    agree: Callable[[Call, int], tuple[int, Ask]] = lambda call, pace: (
        pace,
        Ask.NOTHING,
    ),
) -> Iterator[Call]:
    """Plays rounds; what is done between two calls is up to the caller.

    Args:
      advance: `(state, done, count) -> (state, reports)`, the state being used up.
      state: the state before the first of these rounds.
      rounds: the number that are done already, and the last one.
      every: numbers of rounds, at whose multiples a call ends.
      ahead: `(done)`, called before a call with the round it will end with.
      agree: `(call, pace) -> (pace, what is asked for)`, the same in all processes of a
        run; told of a call that has ended before it is yielded.

    Yields:
      A `Call` after each; whoever iterates decides whether to go on.
    """
    (done, last), pace = rounds, 1
    while done < last:
        stop = min(last, *((done // few + 1) * few for few in every))
        count = min(pace, stop - done, MOST)
        ahead(done + count)
        begin = time.perf_counter()
        state, reports = advance(state, done, count)
        reports = jax.device_get(reports)
        seconds = time.perf_counter() - begin
        call = Call(state, done, done + count, reports, seconds)
        pace, asked = agree(call, max(1, int(SECONDS * count / seconds)))
        done += count
        yield call._replace(asked=asked)
