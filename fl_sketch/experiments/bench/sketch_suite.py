"""Every sketch operator and its adjoint, timed against a copy of the same memory.

The unit is the copy: `x -> -x` over as many numbers, in place because x is donated,
in the same process and in turn with everything else. A ratio of 1.5 means that the
operator takes one and a half times as long as reading and writing its input once.
Adjoints write into a donated vector, like a program that reuses its buffers: a fresh
output of 64 MB costs a CPU more in page faults than any of the work.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch import sketch
from fl_sketch.core.protocols import Sketch
from fl_sketch.experiments.bench.timing import Timed, interleaved, ratio
from fl_sketch.experiments.measurements import Column, Table

# A dense operator draws b d numbers; beyond this a row of the table takes minutes.
LARGEST_DENSE = 4 * 10**9

OPERATORS: dict[str, Callable[[int], Sketch]] = {
    "count_sketch": sketch.count_sketch,
    "count_sketch x5": lambda b: sketch.count_sketch(b, rows=5),
    "sparse_embedding 4": lambda b: sketch.sparse_embedding(b, 4),
    "srht": sketch.srht,
    "uniform_sampling": sketch.uniform_sampling,
    "gaussian": sketch.gaussian,
    "ams": sketch.ams,
}
DENSE = ("gaussian", "ams")


class Row(NamedTuple):
    """The times of a kernel; all None if it was not timed.

    Attributes:
      operator: one of `OPERATORS`, "copy", or one of PyTorch with "torch" before it.
      clients: the number of vectors.
      milliseconds: the median time of a call.
      ratio: this time over that of the copy.
      extra_vectors: the memory beyond the arguments, in vectors of length d.
      note: the reason why there is no time.
    """

    operator: Annotated[str, Column("26")]
    kernel: Annotated[str, Column("16")]
    d: Annotated[int, Column("9d")]
    b: Annotated[int, Column("8d")]
    clients: Annotated[int, Column("7d")]
    milliseconds: Annotated[float | None, Column("10.3g", "ms")] = None
    ratio: Annotated[float | None, Column("7.3g", "/ copy")] = None
    copy_milliseconds: float | None = None
    extra_vectors: Annotated[float | None, Column("9.3g", "vectors")] = None
    note: Annotated[str, Column("", "")] = ""


TABLE = Table.of(Row)


class Kernel(NamedTuple):
    """A jitted function and its arguments.

    Attributes:
      carried: whether the first argument is donated and the result takes its place.
    """

    function: jax.stages.Wrapped
    arguments: Callable[[], tuple]
    carried: bool = False

    def timed(self) -> Timed:
        """Returns it as a computation to time."""

        def call(arguments):
            result = jax.block_until_ready(self.function(*arguments))
            return (result, *arguments[1:]) if self.carried else arguments

        return Timed(self.arguments, call)

    def extra_bytes(self) -> int | None:
        """Returns what XLA allocates beyond the arguments, if it says so."""
        memory = self.function.lower(*self.arguments()).compile().memory_analysis()
        if memory is None:
            return None
        beyond = memory.temp_size_in_bytes + memory.output_size_in_bytes
        return beyond - memory.alias_size_in_bytes


def run(
    sizes: Sequence[int],
    compressions: Sequence[int],
    clients: Sequence[int],
    operators: Sequence[str],
    torch: bool,
) -> Iterator[Row]:
    """Yields the rows of the table, size by size.

    Args:
      compressions: the values of d / b.
      clients: the numbers of vectors that are sketched at once.
      torch: whether PyTorch is timed too, where there is one vector.
    """
    for d, compression, count in itertools.product(sizes, compressions, clients):
        b = max(1, d // compression)
        rows = list(_compare(d, b, count, operators))
        yield from rows
        if torch and count == 1 and (copy := rows[0].milliseconds):
            # Alone, since PyTorch's threads spin for a while and would slow others.
            for name, taken in interleaved(_in_torch(d, b)).items():
                time = 1e3 * statistics.median(taken)
                yield Row(f"torch {name}", "apply", d, b, 1, time, time / copy, copy)


def _compare(d: int, b: int, clients: int, names: Sequence[str]) -> Iterator[Row]:
    shape, skipped = (d,) if clients == 1 else (clients, d), []
    negate = jax.jit(jnp.negative, donate_argnums=0)
    copies = Kernel(negate, lambda: (_vector(shape),), carried=True)
    kernels = {("copy", "in place"): copies}
    for name in names:
        if name in DENSE and b * d * clients > LARGEST_DENSE:
            note = f"not timed: {b * d * clients:.1e} entries"
            skipped.append(Row(name, "", d, b, clients, note=note))
            continue
        op = OPERATORS[name](b)
        made = _one_vector(op, d) if clients == 1 else _many(op, d, clients)
        kernels |= {(name, kernel): timed for kernel, timed in made.items()}
    samples = interleaved({key: kernel.timed() for key, kernel in kernels.items()})
    copy = samples["copy", "in place"]
    copy_time = 1e3 * statistics.median(copy)
    for (name, kernel), taken in samples.items():
        extra = kernels[name, kernel].extra_bytes()
        vectors = None if extra is None else extra / (4 * d)
        times = 1e3 * statistics.median(taken), ratio(taken, copy), copy_time
        yield Row(name, kernel, d, b, clients, *times, vectors)
    yield from skipped


def _one_vector(op: Sketch, d: int) -> dict[str, Kernel]:
    key = jax.random.key(0)

    def into_donated(function):
        donating = jax.jit(function, donate_argnums=0, keep_unused=True)

        def arguments():
            return _vector((d,)), key, op.apply(key, _vector((d,)))

        return Kernel(donating, arguments, carried=True)

    kernels = {
        "apply": Kernel(jax.jit(op.apply), lambda: (key, _vector((d,)))),
        "adjoint": into_donated(lambda x, key, s: op.transpose(key, s, d)),
    }
    if op.estimate is not op.transpose:
        median = into_donated(lambda x, key, s: op.estimate(key, s, d))
        kernels["median of rows"] = median
    return kernels


def _many(op: Sketch, d: int, clients: int) -> dict[str, Kernel]:
    def with_map(key, xs):
        return jax.lax.map(functools.partial(op.apply, key), xs)

    def with_vmap(key, xs):
        return jax.vmap(op.apply, in_axes=(None, 0))(key, xs)

    def arguments():
        return jax.random.key(0), _shared_vectors(clients, d)

    return {
        "apply, lax.map": Kernel(jax.jit(with_map), arguments),
        "apply, vmap": Kernel(jax.jit(with_vmap), arguments),
    }


@functools.lru_cache(maxsize=1)
def _shared_vectors(clients: int, d: int) -> jax.Array:
    """Returns one input for all kernels: sixteen vectors of 2^24 take a gigabyte."""
    return _vector((clients, d))


def _vector(shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(jax.random.key(1), shape)


def _in_torch(d: int, b: int, rows: int = 5) -> dict[str, Timed]:
    """Returns the same work in PyTorch: a copy, a scatter sketch and a blocked one.

    Both keep their hashes in memory, made once, as the code released with FetchSGD
    does, which saves them the cost of new hashes in each round.

    Raises:
      ImportError: if torch is not installed.
    """
    import torch  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(d, generator=generator)
    signs = torch.randint(0, 2, (rows, d), generator=generator).float() * 2 - 1
    buckets = torch.randint(0, b, (rows, d), generator=generator)
    offsets = torch.randint(0, b, (-(-d // b),), generator=generator).tolist()

    def scatter(_):
        table = torch.zeros(rows, b)
        for row in range(rows):
            table[row].scatter_add_(0, buckets[row], signs[row] * x)

    def blocked(_):
        table = torch.zeros(2 * b)
        for number, offset in enumerate(offsets):
            first, last = number * b, min(d, (number + 1) * b)
            place = table[offset : offset + last - first]
            place.addcmul_(x[first:last], signs[0, first:last])
        return table[:b] + table[b:]

    return {
        "copy": Timed(lambda: x.clone(), lambda values: values.neg_()),
        f"scatter x{rows}": Timed(lambda: None, scatter),
        "blocked": Timed(lambda: None, blocked),
    }
