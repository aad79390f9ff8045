"""Every sketch operator and its adjoint, timed against a copy of the same memory.

python -m benchmarks.sketch
python -m benchmarks.sketch --sizes=1000000 --compressions=100 --operators=srht

The unit is the copy: `x -> -x` over as many values, in place because x is donated, in
the same process and in turn with everything else. A ratio of 1.5 means that the
operator takes one and a half times as long as reading and writing its input once.
Adjoints write into a donated vector, like a program that reuses its buffers: a fresh
output of 64 MB costs a CPU more in page faults than any of the work.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fl_sketch import sketch
from fl_sketch.core.protocols import Sketch

OPERATORS: dict[str, Callable[[int], Sketch]] = {
    "count_sketch": sketch.count_sketch,
    "count_sketch x5": lambda b: sketch.count_sketch(b, rows=5),
    "sparse_embedding 4": lambda b: sketch.sparse_embedding(b, 4),
    "srht": sketch.srht,
    "uniform_sampling": sketch.uniform_sampling,
}


class Timed:
    """A computation `call(value) -> value`, which returns when the work is done.

    If it overwrites its donated argument it returns the value for the next call.
    """

    def __init__(self, value: Any, call: Callable[[Any], Any]):
        self.value, self.call = value, call
        *_, spent = (self.seconds() for _ in range(3))  # the first ones compile
        self.calls = max(1, int(0.01 / max(spent, 1e-7)))

    def seconds(self) -> float:
        """Calls once more; returns the time that it took."""
        begin = time.perf_counter()
        self.value = self.call(self.value)
        return time.perf_counter() - begin


def rows(
    d: int, compression: int, operators: Sequence[str], rounds: int = 15
) -> Iterator[dict[str, Any]]:
    """Yields a row for the copy and for each kernel of the operators.

    Every round takes one sample of each kernel, in random order: calls of about ten
    milliseconds, of which the median counts.
    """
    b, key = max(1, d // compression), jax.random.key(0)
    negate = jax.jit(jnp.negative, donate_argnums=0)

    def vector():
        return jax.random.normal(jax.random.key(1), (d,))

    def applying(op):
        apply = jax.jit(op.apply)
        return lambda x: (x, jax.block_until_ready(apply(key, x)))[0]

    def into_donated(adjoint):
        def overwriting(x, s):
            return adjoint(key, s, x.size)

        function = jax.jit(overwriting, donate_argnums=0, keep_unused=True)
        return lambda value: (jax.block_until_ready(function(*value)), value[1])

    copy = Timed(vector(), lambda x: jax.block_until_ready(negate(x)))
    timed = {("copy", "in place"): copy}
    for name in operators:
        op = OPERATORS[name](b)
        adjoints = {"adjoint": op.transpose}
        if op.estimate is not op.transpose:
            adjoints["median of rows"] = op.estimate
        timed[name, "apply"] = Timed(vector(), applying(op))
        for kernel, adjoint in adjoints.items():
            value = vector(), op.apply(key, vector())
            timed[name, kernel] = Timed(value, into_donated(adjoint))
    samples = {name: [] for name in timed}
    for _ in range(rounds):
        for name in random.sample(list(timed), len(timed)):
            item = timed[name]
            taken = [item.seconds() for _ in range(item.calls)]
            samples[name].append(statistics.median(taken))
    for (name, kernel), taken in samples.items():
        pairs = zip(taken, samples["copy", "in place"], strict=True)
        yield {
            "operator": name,
            "kernel": kernel,
            "d": d,
            "b": b,
            "device": jax.devices()[0].device_kind,
            "jax": jax.__version__,
            "milliseconds": 1e3 * statistics.median(taken),
            "ratio": statistics.median(ours / copied for ours, copied in pairs),
        }


def main() -> None:
    """Times the operators and sizes that the arguments name."""
    parser = argparse.ArgumentParser()
    several: Any = {"action": "append", "help": "repeatable"}
    parser.add_argument("--sizes", type=int, **several)
    parser.add_argument("--compressions", type=int, **several)
    parser.add_argument("--operators", choices=list(OPERATORS), **several)
    parser.add_argument("--out", help="a file to which JSON lines are appended")
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 1)  # a kernel may use all cores
    for d in given.sizes or (10**6, 2**24):
        for compression in given.compressions or (10, 100, 1000):
            for row in rows(d, compression, given.operators or list(OPERATORS)):
                print(
                    f"{d:9} {row['b']:8}  {row['operator']:18} {row['kernel']:14} "
                    f"{row['milliseconds']:9.4g} ms, {row['ratio']:6.3g} of a copy",
                    flush=True,
                )
                if given.out:
                    with open(given.out, "a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
