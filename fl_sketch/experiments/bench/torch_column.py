"""The same work in PyTorch, where torch is installed, for comparison.

Both sketches keep their hashes in memory, made once, as the code released with FetchSGD
does. That saves them the cost of new hashes in each round.
"""

from fl_sketch.experiments.bench.timing import Timed


def computations(d: int, b: int, rows: int = 5) -> dict[str, Timed]:
    """Returns a copy, a scatter sketch of `rows` rows and a blocked one of one row.

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
