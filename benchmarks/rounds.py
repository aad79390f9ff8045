"""The workloads of rounds, and how a program serves them to `benchmarks.peers`.

Only numpy is imported, so that a program in PyTorch does not load jax. No data set is
read: images are bytes drawn from a seed, as many as the named data sets have. Neither
times nor memory depend on what they show.

A program plays two rounds, notes how far its model moved in the first, and prints
"READY". For every line "go" on its input it plays another round and prints the seconds
that it took. At "end" it prints a line of JSON and ends. What it prints otherwise goes
to stderr. Not timed: examples are on the device when the first round begins, and the
rows of a round are drawn and sent there before its clock starts.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

CLASSES = 10
Weights = Mapping[str, np.ndarray]  # of a model, by the paths of its parameters


class Workload(NamedTuple):
    """A model, its clients and their local work.

    Attributes:
      image: height, width and channels.
      full_batch: whether all steps are on one batch, the client's whole data.
      compression: d over the size of a message, where there is a sketch.
    """

    model: str
    image: tuple[int, int, int]
    population: int
    cohort: int
    examples: int
    steps: int
    batch: int
    rate: float
    full_batch: bool = False
    compression: int = 20


WORKLOADS = {
    "W1": Workload("cnn", (32, 32, 3), 1000, 50, 50, 5, 10, 0.1),
    "W2": Workload("lenet", (28, 28, 1), 50, 25, 1200, 5, 32, 0.05),
    "W3": Workload("logistic", (28, 28, 1), 3000, 600, 20, 20, 20, 0.01, True),
    "W4": Workload("lenet", (28, 28, 1), 1000, 1000, 60, 5, 32, 0.05),
    "W5": Workload("resnet", (32, 32, 3), 5, 5, 10000, 2, 32, 0.1, compression=100),
}


def drawn_examples(work: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Returns bytes of images and their targets."""
    rng = np.random.default_rng(0)
    count = work.population * work.examples
    images = rng.integers(0, 256, (count, *work.image), np.uint8)
    return images, rng.integers(0, CLASSES, count, np.int32)


def drawn_plan(work: Workload, number: int) -> np.ndarray:
    """Returns the rows of the examples of a round, [cohort, batches, batch].

    A client passes over its own examples in random order, as often as it needs. With
    `full_batch` there is one batch for all steps.
    """
    rng = np.random.default_rng((1, number))
    batches = 1 if work.full_batch else work.steps
    passes = -(-batches * work.batch // work.examples)
    cohort = rng.permutation(work.population)[: work.cohort].astype(np.int32)
    own = cohort[:, None] * work.examples + np.arange(work.examples, dtype=np.int32)
    rows = np.concatenate([rng.permuted(own, axis=1) for _ in range(passes)], axis=1)
    rows = rows[:, : batches * work.batch]
    return np.ascontiguousarray(rows.reshape(work.cohort, batches, work.batch))


class Player(NamedTuple):
    """A program's rounds, with its model inside.

    Attributes:
      place: `(plan) -> placed`, which sends the rows of a round to the device.
      play: `(placed) -> None`, plays the round, and returns when it is done.
      weights: `() -> weights`, a copy of the model.
      device: the name of what it runs on.
    """

    place: Callable[[np.ndarray], Any]
    play: Callable[[Any], None]
    weights: Callable[[], Weights]
    device: str


def serve(version: str, build: Callable[[Workload, Weights, str], Player]) -> None:
    """Plays the rounds of `build(workload, weights, form)` that argv asks for."""
    workload, form, cohort, weights = sys.argv[1:]
    work = WORKLOADS[workload]._replace(cohort=int(cohort))
    answers, done = sys.stdout, 0
    with contextlib.redirect_stdout(sys.stderr), np.load(weights) as file:
        player = build(work, dict(file), form)

        def seconds() -> float:
            nonlocal done
            placed = player.place(drawn_plan(work, done))
            begin = time.perf_counter()
            player.play(placed)
            done += 1
            return time.perf_counter() - begin

        before, first = player.weights(), seconds()
        # Later rounds of a large step may carry the last digits of a program far away.
        after = player.weights()
        squares = (
            np.square(after[name] - x, dtype=float) for name, x in before.items()
        )
        moved = math.sqrt(sum(square.sum() for square in squares))
        seconds()
        print("READY", file=answers, flush=True)
        while sys.stdin.readline().strip() == "go":
            print(f"{seconds():.9f}", file=answers, flush=True)
        summary = {"device": player.device, "version": version}
        summary |= {"first_seconds": first, "moved": moved}
        print(json.dumps(summary), file=answers, flush=True)
