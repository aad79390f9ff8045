"""CIFAR-10 as the first code of NIID-Bench divides it, and how unlike its parties are.

python -m experiments.niid_bench

The published accuracies are of one partition for 10 parties and one for 100, since that
code draws with seed 2020 whatever seed a trial has. `of_10` and `of_100` are these, for
`published` of configs/niid_bench.py. The command writes results/niid_bench/
partitions.csv: how many classes a party has in effect, the exponential of the mean
entropy of its labels, in partitions of 20 seeds, how many of these have fewer than the
published one. Both need the folder of CIFAR-10 in
FL_SKETCH_DATA. `scaffold` is SCAFFOLD as that code has it, with which the published
accuracy of 100 parties is 10.0; `scaffold_begun` and `scaffold_divided` have one of its
two differences each:

python -m launch.train --config=configs/niid_bench.py:100,published,scaffold \
--config.algorithm=experiments/niid_bench.py:scaffold --workdir=/tmp/theirs
"""

import csv
import functools
import io
import math
import statistics
from collections.abc import Sequence

import jax
import numpy as np

from experiments.verdicts import RESULTS
from fl_sketch import algorithms, data
from fl_sketch.core import files
from fl_sketch.core.protocols import Algorithm, Memory, Tree
from fl_sketch.data import datasets, npz
from fl_sketch.workdir.tables import half_width

SEED, ALPHA, FEWEST = 2020, 0.5, 10
SEEDS = range(20)


def of_10() -> dict[str, np.ndarray]:
    """Returns CIFAR-10 with owners, the published 10 parties."""
    return _owned(10)


def of_100() -> dict[str, np.ndarray]:
    """Returns CIFAR-10 with owners, the published 100 parties."""
    return _owned(100)


def parties(labels: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
    """Returns the examples of each party, by numpy's old generator as in that code."""
    random = np.random.RandomState(seed)
    held: list[list[int]] = [[]]
    while min(map(len, held)) < FEWEST:
        held = [[] for _ in range(count)]
        for label in range(10):
            members = np.flatnonzero(labels == label)
            random.shuffle(members)
            shares = random.dirichlet(np.full(count, ALPHA))
            shares *= [len(own) < len(labels) / count for own in held]
            cuts = np.cumsum(shares / shares.sum()) * len(members)
            parts = np.split(members, cuts.astype(int)[:-1])
            for own, part in zip(held, parts, strict=True):
                own += [*part]
    return [np.array(own) for own in held]


def classes(labels: np.ndarray, held: Sequence[np.ndarray]) -> float:
    """Returns the number of classes that a party has in effect."""
    entropy = 0.0
    for own in held:
        shares = np.bincount(labels[own]) / len(own)
        shares = shares[shares > 0]
        entropy -= len(own) / len(labels) * shares @ np.log(shares)
    return float(np.exp(entropy))


@functools.wraps(algorithms.scaffold)
def scaffold(*arguments, **options) -> Algorithm:
    """Returns SCAFFOLD with both differences of the first code.

    If all parties take part, they make none after the first round.
    """
    return _begun(_divided(algorithms.scaffold(*arguments, **options)))


@functools.wraps(algorithms.scaffold)
def scaffold_begun(*arguments, **options) -> Algorithm:
    """Returns SCAFFOLD whose c and c_i begin as one network, and not as zeros."""
    return _begun(algorithms.scaffold(*arguments, **options))


@functools.wraps(algorithms.scaffold)
def scaffold_divided(*arguments, **options) -> Algorithm:
    """Returns SCAFFOLD whose c moves by a mean over the parties in a round, not all."""
    return _divided(algorithms.scaffold(*arguments, **options))


def _begun(made: Algorithm) -> Algorithm:
    def init(params):
        return Memory(made.uplink.init(params).client, _network(params))

    uplink = made.uplink._replace(init=init)
    return made._replace(local=made.local._replace(init=_network), uplink=uplink)


def _divided(made: Algorithm) -> Algorithm:
    def protocol(update, memory, keys, round):
        few = round._replace(population=round.present)
        return (yield from made.uplink.protocol(update, memory, keys, few))

    return made._replace(uplink=made.uplink._replace(protocol=protocol))


def _network(params: Tree) -> Tree:
    """Returns weights as PyTorch draws them, but biases of zero."""

    def drawn(leaf):
        bound = 1 / math.sqrt(math.prod(leaf.shape[:-1])) if leaf.ndim > 1 else 0.0
        return jax.random.uniform(jax.random.key(0), leaf.shape, None, -bound, bound)

    return jax.tree.map(drawn, params)


def main() -> None:
    """Writes partitions.csv."""
    labels = datasets.load("cifar10").train.targets
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["parties", "rule", "seed", "classes", "half_width", "fewer"])
    for count in (10, 100):
        of_rules: dict[str, list[float]] = {"theirs": [], "capped_dirichlet": []}
        for seed in SEEDS:
            of_rules["theirs"].append(classes(labels, parties(labels, count, seed)))
            own = data.capped_dirichlet(labels, count, ALPHA, seed=seed)
            held = [own.of(client) for client in range(count)]
            of_rules["capped_dirichlet"].append(classes(labels, held))
        published = classes(labels, parties(labels, count, SEED))
        rows.writerow([count, "theirs", SEED, published, "", ""])
        for rule, found in of_rules.items():
            rows.writerow([count, rule, SEEDS[0], found[0], "", ""])
            fewer = sum(one < published for one in found)
            mean, half = statistics.fmean(found), half_width(found)
            rows.writerow([count, rule, f"all {len(SEEDS)}", mean, half, fewer])
    files.write_text(RESULTS / "niid_bench" / "partitions.csv", table.getvalue())


def _owned(count: int) -> dict[str, np.ndarray]:
    splits = datasets.load("cifar10")
    owners = np.empty(len(splits.train.targets), np.int32)
    for number, own in enumerate(parties(splits.train.targets, count, SEED)):
        owners[own] = number
    arrays = zip(npz.ARRAYS, (*splits.train, *splits.test), strict=True)
    return {**dict(arrays), "owners": owners}


if __name__ == "__main__":
    main()
