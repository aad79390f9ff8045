"""What a round takes, from rounds of a few clients.

What grows with the clients is extrapolated to the whole cohort.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

FEW, MORE = 2, 4  # turns of a device in timed rounds: one alone has another form
LONG = 0.5  # seconds of a round: longer ones are extrapolated
BLOCK = 0.1  # seconds of rounds that are timed together, as a run plays them
SAMPLES, LONGEST = 7, 3.0  # blocks of each, and the seconds for all samples of one


class Cost(NamedTuple):
    """What a round takes.

    Attributes:
      seconds: of the whole round.
      turn: of a device's work on one chunk of clients; None: there are so few that
        the whole round was timed.
      temporaries: bytes on a device apart from the data and the state.
    """

    seconds: float
    turn: float | None
    temporaries: float


def extrapolated(
    build: Callable[[int], tuple[Any, Callable[[int], None]]], places: int, at_once: int
) -> Cost:
    """Returns the cost of a round of `places` clients.

    Args:
      build: `(clients) -> (program, play)` of a round of so many clients, where
        `play(count)` plays so many rounds.
      at_once: the number of clients that all devices work on in one turn.
    """
    turns = -(-places // at_once)
    if turns < MORE:
        program, play = build(places)
        return Cost(seconds_of({1: play})[1], None, temporaries(program))
    few = build(FEW * at_once)
    many = min(turns, max(MORE, int(FEW * LONG / _once(few[1]))))
    built = {FEW: few, many: build(min(places, many * at_once))}
    seconds = seconds_of({n: play for n, (_, play) in built.items()})
    scratch = {n: temporaries(program) for n, (program, _) in built.items()}
    turn, more = ((of[many] - of[FEW]) / (many - FEW) for of in (seconds, scratch))
    rest = turns - many
    return Cost(seconds[many] + turn * rest, turn, scratch[many] + more * rest)


def _once(play: Callable[[int], None]) -> float:
    """Returns the seconds of a round, of which the first is not timed."""
    play(1)
    return max(_taken(play, 1), 1e-9)


def seconds_of(plays: dict[int, Callable[[int], None]]) -> dict[int, float]:
    """Returns the seconds of one round of each, timed in turn."""
    counts, samples = {}, {name: [] for name in plays}
    for name, play in plays.items():
        counts[name] = max(1, int(BLOCK / _once(play)))
    slowest = max(_taken(play, counts[name]) for name, play in plays.items())
    for _ in range(max(2, min(SAMPLES, int(LONGEST / slowest)))):
        for name, play in plays.items():
            samples[name].append(_taken(play, counts[name]) / counts[name])
    return {name: statistics.median(taken) for name, taken in samples.items()}


def _taken(play: Callable[[int], None], count: int) -> float:
    begin = time.perf_counter()
    play(count)
    return time.perf_counter() - begin


def temporaries(program: Any) -> float:
    """Returns the bytes of a program on a device apart from its arguments."""
    memory = program.memory_analysis()
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return float(memory.temp_size_in_bytes + new)
