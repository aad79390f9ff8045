"""Every sketch operator and its adjoint, timed against a copy of the same memory.

The unit is the copy: `x -> -x` over as many numbers, in place because x is donated,
in the same process and in turn with everything else. A ratio of 1.5 means that the
operator takes half as long again as reading and writing its input once. Adjoints
write into a donated vector, as a program that keeps its buffers would: a fresh
64 MB output costs a CPU more in page faults than any of the work.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch import sketch
from fl_sketch.core.protocols import Sketch
from fl_sketch.experiments.bench import torch_column
from fl_sketch.experiments.bench.timing import Timed, interleaved, ratio

# A dense operator draws b d numbers; beyond this a row of the table takes minutes.
LARGEST_DENSE = 4 * 10**9

OPERATORS: dict[str, Callable[[int], Sketch]] = {
    "count_sketch": sketch.count_sketch,
    "count_sketch x5": lambda b: sketch.count_sketch(b, rows=5),
    "count_sketch independent": lambda b: sketch.count_sketch(b, hash="independent"),
    "count_sketch polynomial": lambda b: sketch.count_sketch(b, signs="polynomial"),
    "sparse_embedding 4": lambda b: sketch.sparse_embedding(b, 4),
    "srht": sketch.srht,
    "uniform_sampling": sketch.uniform_sampling,
    "gaussian": sketch.gaussian,
    "ams": sketch.ams,
}
DENSE = ("gaussian", "ams")


class Row(NamedTuple):
    """One line of the table; what was not timed has None for its numbers.

    Attributes:
      operator: one of `OPERATORS`, or "copy", or with "torch" before it one of theirs.
      kernel: what is done with it.
      d: the length of a vector.
      b: the length of a message.
      clients: the number of vectors.
      milliseconds: the median time of a call.
      ratio: this time over that of the copy.
      copy_milliseconds: the median time of the copy.
      extra_vectors: the memory beyond the arguments, in vectors of length d.
      note: the reason why there is no time, if so.
    """

    operator: str
    kernel: str
    d: int
    b: int
    clients: int
    milliseconds: float | None
    ratio: float | None
    copy_milliseconds: float | None
    extra_vectors: float | None
    note: str


class Kernel(NamedTuple):
    """A jitted function and what it is fed; the first argument may be donated.

    Attributes:
      function: the function.
      arguments: `() -> arguments`, fresh ones.
      carried: whether the result takes the place of the first argument, donated.
    """

    function: jax.stages.Wrapped
    arguments: Callable[[], tuple]
    carried: bool


def run(
    sizes: Sequence[int],
    compressions: Sequence[int],
    clients: Sequence[int],
    names: Sequence[str],
    with_torch: bool,
) -> Iterator[Row]:
    """Yields the rows of the table, size by size.

    Args:
      sizes: the lengths d of a vector.
      compressions: the values of d / b.
      clients: the numbers of vectors that are sketched at once.
      names: the operators, names of `OPERATORS`.
      with_torch: whether PyTorch is timed too, where there is one vector.
    """
    for d, compression, count in itertools.product(sizes, compressions, clients):
        b = max(1, d // compression)
        rows = list(_compare(d, b, count, names))
        yield from rows
        if with_torch and count == 1 and (copy := rows[0].milliseconds):
            yield from _compare_torch(d, b, copy)


def _compare(d: int, b: int, clients: int, names: Sequence[str]) -> Iterator[Row]:
    kernels, skipped = {("copy", "in place"): _copy(d, clients)}, []
    for name in names:
        if name in DENSE and b * d * clients > LARGEST_DENSE:
            note = f"not timed: {b * d * clients:.1e} entries"
            skipped.append(Row(name, "", d, b, clients, None, None, None, None, note))
            continue
        op = OPERATORS[name](b)
        made = _one_vector(op, d) if clients == 1 else _many(op, d, clients)
        kernels |= {(name, kernel): timed for kernel, timed in made.items()}
    samples = interleaved({key: _timed(kernel) for key, kernel in kernels.items()})
    copy = samples["copy", "in place"]
    for (name, kernel), taken in samples.items():
        vectors = _extra_vectors(kernels[name, kernel], d)
        times = _milliseconds(taken), ratio(taken, copy), _milliseconds(copy)
        yield Row(name, kernel, d, b, clients, *times, vectors, "")
    yield from skipped


def _copy(d: int, clients: int) -> Kernel:
    shape = (d,) if clients == 1 else (clients, d)
    negate = jax.jit(jnp.negative, donate_argnums=0)
    return Kernel(negate, lambda: (_vector(shape),), carried=True)


def _one_vector(op: Sketch, d: int) -> dict[str, Kernel]:
    key = jax.random.key(0)
    donating = functools.partial(jax.jit, donate_argnums=0, keep_unused=True)

    def message():
        return op.apply(key, _vector((d,)))

    def into_donated(read):
        return Kernel(
            donating(lambda x, key, s: read(key, s, d)),
            lambda: (_vector((d,)), key, message()),
            carried=True,
        )

    kernels = {
        "apply": Kernel(jax.jit(op.apply), lambda: (key, _vector((d,))), carried=False),
        "adjoint": into_donated(op.transpose),
        "x -= lr R's": Kernel(
            donating(lambda x, key, s: op.add_transpose(key, s, x, -1e-3)),
            lambda: (_vector((d,)), key, message()),
            carried=True,
        ),
    }
    if op.estimate is not op.transpose:
        kernels["median of rows"] = into_donated(op.estimate)
    return kernels


def _many(op: Sketch, d: int, clients: int) -> dict[str, Kernel]:
    def with_map(key, xs):
        return jax.lax.map(functools.partial(op.apply, key), xs)

    def with_vmap(key, xs):
        return jax.vmap(op.apply, in_axes=(None, 0))(key, xs)

    def arguments():
        return jax.random.key(0), _shared_vectors(clients, d)

    return {
        "apply, lax.map": Kernel(jax.jit(with_map), arguments, carried=False),
        "apply, vmap": Kernel(jax.jit(with_vmap), arguments, carried=False),
    }


@functools.lru_cache(maxsize=1)
def _shared_vectors(clients: int, d: int) -> jax.Array:
    """Returns one input for all kernels: sixteen vectors of 2^24 take a gigabyte."""
    return _vector((clients, d))


def _vector(shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(jax.random.key(1), shape)


def _timed(kernel: Kernel) -> Timed:
    def call(arguments):
        result = jax.block_until_ready(kernel.function(*arguments))
        return (result, *arguments[1:]) if kernel.carried else arguments

    return Timed(kernel.arguments, call)


def _extra_vectors(kernel: Kernel, d: int) -> float | None:
    """Returns what XLA allocates beyond the arguments, in float32 vectors of d."""
    memory = kernel.function.lower(*kernel.arguments()).compile().memory_analysis()
    if memory is None:
        return None
    beyond = memory.temp_size_in_bytes + memory.output_size_in_bytes
    return (beyond - memory.alias_size_in_bytes) / (4 * d)


def _compare_torch(d: int, b: int, copy: float) -> Iterator[Row]:
    """Times PyTorch by itself: its threads spin for a while, and would slow others."""
    for name, samples in interleaved(torch_column.computations(d, b)).items():
        taken = _milliseconds(samples)
        yield Row(
            f"torch {name}", "apply", d, b, 1, taken, taken / copy, copy, None, ""
        )


def _milliseconds(samples: Sequence[float]) -> float:
    return 1e3 * statistics.median(samples)


COLUMNS = "{:26} {:16} {:>9} {:>8} {:>7} {:>10} {:>7} {:>9}  {}"
HEAD = COLUMNS.format(
    "operator", "kernel", "d", "b", "clients", "ms", "/ copy", "vectors", ""
)


def line(row: Row) -> str:
    """Returns `row` as a line of the printed table."""
    numbers = (row.milliseconds, row.ratio, row.extra_vectors)
    ms, ratio, vectors = ("" if n is None else f"{n:.3g}" for n in numbers)
    return COLUMNS.format(
        row.operator, row.kernel, row.d, row.b, row.clients, ms, ratio, vectors,
        row.note,
    )  # fmt: skip
