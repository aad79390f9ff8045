"""The same work in PyTorch, where torch is installed: a yardstick from outside.

Both sketches keep their hashes in memory, made once, which is how the code released
with FetchSGD works and which spares them the cost of drawing fresh ones each round.
"""

from fl_sketch.experiments.bench.timing import Timed


def computations(d: int, b: int, rows: int = 5) -> dict[str, Timed]:
    """Returns a copy, a scatter sketch of `rows` rows and a blocked one of one row.

    Args:
      d: the length of the vector.
      b: the number of columns of a sketch.
      rows: the number of rows of the scatter sketch.

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

    def no_state():
        return None

    return {
        "copy": Timed(lambda: x.clone(), lambda values: values.neg_()),
        f"scatter x{rows}": Timed(no_state, scatter),
        "blocked": Timed(no_state, blocked),
    }
