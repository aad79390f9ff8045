"""The messages between a program and the suite that times it.

    python -m fl_sketch.experiments.bench.peers.torch_rounds --workload=W1 --form=vmap

The program plays `WARM` rounds, looks at its model, and prints `READY`. For every line
"go" on its input it plays again and prints the seconds that a round took. At "end" it
prints a line of JSON, see `Summary`, and ends. What it prints otherwise goes to stderr.

Not timed: examples are on the device when the first round begins, and the rows of a
round are drawn and sent there before its clock starts.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_sketch.experiments.bench.peers import inputs
from fl_sketch.experiments.bench.workloads import Workload

READY, GO, END = "READY", "go", "end"
WARM = 2  # rounds before the models of all programs are compared


class Player(NamedTuple):
    """A program's rounds, with its model inside.

    Attributes:
      place: `(plans) -> placed`, which sends the rows of rounds to the device.
      play: `(placed) -> None`, plays these rounds, and returns when they are done.
      weights: `() -> weights`, a copy of the model, by the paths of its parameters.
      device: the name of what it runs on.
      device_megabytes: `() -> MB` of an accelerator at most; None: there is none.
      helpers: `() -> ids` of the processes that it has started.
      at_once: the number of rounds of a call after the first `WARM`.
    """

    place: Callable[[Sequence[np.ndarray]], Any]
    play: Callable[[Any], None]
    weights: Callable[[], dict[str, np.ndarray]]
    device: str
    device_megabytes: Callable[[], float | None] = lambda: None
    helpers: Callable[[], Sequence[int]] = tuple
    at_once: int = 1


class Summary(NamedTuple):
    """What a program says at its end.

    Attributes:
      first_seconds: those of the first round, with all that is compiled for it.
      length: the length of the parameters after `WARM` rounds.
      moved: how far they are, after the first round, from where they began. Later
        rounds of a large step may carry the last digits of any program far away.
      megabytes: the most memory of the program and its helpers.
    """

    device: str
    version: str
    first_seconds: float
    length: float
    moved: float
    megabytes: float
    device_megabytes: float | None


def arguments(
    argv: Sequence[str] | None, *, forms: Sequence[str], add: Sequence[str] = ()
) -> argparse.Namespace:
    """Returns what a program was asked for.

    Args:
      forms: of its rounds.
      add: names of further whole numbers.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=sorted(inputs.WORKLOADS), required=True)
    parser.add_argument("--form", choices=forms, default=forms[0])
    parser.add_argument("--tf32", type=int, default=1)
    for name in ("cohort", *add):  # 0: as the workload has it
        parser.add_argument(f"--{name}", type=int, default=0)
    return parser.parse_args(argv)


def workload(given: argparse.Namespace) -> Workload:
    """Returns the workload that was asked for, with another cohort if so."""
    work = inputs.WORKLOADS[given.workload]
    return work._replace(cohort=given.cohort or work.cohort)


def serve(work: Workload, version: str, build: Callable[[], Player]) -> None:
    """Warms a program up, and runs a round for each request.

    Args:
      version: the packages that it uses.
      build: makes it; what it prints goes to stderr.
    """
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        player = build()
        before = player.weights()
        _forget_peak()
        first = _seconds(player, work, 0, 1)
        moved = inputs.distance(player.weights(), before)
        for number in range(1, WARM):
            _seconds(player, work, number, 1)
        length = inputs.length(player.weights())
        done = WARM
        for _ in range(2):  # of calls as they will be timed
            _seconds(player, work, done, player.at_once)
            done += player.at_once
        print(READY, file=answers, flush=True)
        for line in sys.stdin:
            if line.strip() == END:
                break
            taken = _seconds(player, work, done, player.at_once) / player.at_once
            done += player.at_once
            print(f"{taken:.9f}", file=answers, flush=True)
        summary = Summary(
            device=player.device,
            version=version,
            first_seconds=first,
            length=length,
            moved=moved,
            megabytes=_peak() + sum(map(_own, player.helpers())),
            device_megabytes=player.device_megabytes(),
        )
        print(json.dumps(summary._asdict()), file=answers, flush=True)


def _seconds(player: Player, work: Workload, done: int, count: int) -> float:
    placed = player.place([inputs.drawn_plan(work, done + n) for n in range(count)])
    begin = time.perf_counter()
    player.play(placed)
    return time.perf_counter() - begin


def _forget_peak() -> None:
    """Makes the peak of this process that of its rounds, without the loading."""
    with contextlib.suppress(OSError):  # not everywhere
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    return _entry("/proc/self/status", ("VmHWM",))


def _own(process: int) -> float:
    """Returns what a process shares with no other, in MB."""
    names = ("Private_Clean", "Private_Dirty")
    return _entry(f"/proc/{process}/smaps_rollup", names)


def _entry(path: str, names: Sequence[str]) -> float:
    """Returns the sum of lines "NAME: NUMBER kB" of a file, in MB; else 0."""
    with contextlib.suppress(OSError):
        lines = (line.split() for line in pathlib.Path(path).read_text().splitlines())
        found = {words[0].rstrip(":"): words[1] for words in lines if len(words) == 3}
        return sum(int(found.get(name, 0)) for name in names) / 1024
    return 0.0


def cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
