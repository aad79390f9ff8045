"""E|R^T R x - x|^2 of every operator, exactly, for any d and b.

For operators whose columns c_i have unit norm the error of coordinate i comes from
the others alone, and with independent signs E|R^T R x - x|^2 = sum_j x_j^2 sum_{i !=
j} E<c_i, c_j>^2; what is left to know is how often two columns meet. The
derivations for SRHT and sparse embeddings stand in the operators' docstrings.
"""

import numpy as np


def gaussian(x, b):
    """(d+1)/b |x|^2: the norm of a column is random too, of variance 2/b."""
    return (x.size + 1) / b * x @ x


def ams(x, b):
    """(d-1)/b |x|^2: any two columns have E<c_i, c_j>^2 = 1/b."""
    return (x.size - 1) / b * x @ x


def srht(x, b):
    """(d-1)/(n-1) (n/b - 1) |x|^2."""
    d, b = x.size, min(b, x.size)
    n = 1 << (d - 1).bit_length()
    return 0.0 if n == 1 else (d - 1) / (n - 1) * (n / b - 1) * x @ x


def tile_mates(d, tile):
    """Returns, for each coordinate, the size of its tile."""
    number = np.arange(d) // tile
    return np.bincount(number)[number]


def count_sketch(rows):
    """Pairs in different tiles meet with probability 1/cols, others never."""

    def error(x, b):
        d = x.size
        return x**2 @ (d - tile_mates(d, min(b, d))) / (rows * b)

    return error


def sparse_embedding(nonzeros):
    """1/b across tiles; within a tile (s-1)/(s (b-1))."""

    def error(x, b):
        d, s = x.size, min(nonzeros, b)
        mates = tile_mates(d, min(b, d))
        within = (s - 1) / (s * (b - 1)) if b > 1 else 0.0
        return x**2 @ ((d - mates) / b + (mates - 1) * within)

    return error


def uniform_sampling(x, b):
    """A coordinate is kept with probability b/d and multiplied by d/b."""
    return (x.size / min(b, x.size) - 1) * x @ x


def identity(x, b):
    """Nothing is lost."""
    del x, b
    return 0.0
