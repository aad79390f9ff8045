"""A count sketch as its definition says, one coordinate at a time."""

import numpy as np


def apply(x, hashes, signs, cols):
    """S[j, h_j(i)] += s_j(i) x_i, for hashes and signs of shape (rows, d)."""
    rows, d = hashes.shape
    table = np.zeros((rows, cols))
    for j in range(rows):
        for i in range(d):
            table[j, hashes[j, i]] += signs[j, i] * x[i]
    return table


def query(table, hashes, signs):
    """PRIVIX (FedSKETCH, Algorithm 2): the median over j of s_j(i) S[j, h_j(i)]."""
    rows, d = hashes.shape
    estimates = [
        [signs[j, i] * table[j, hashes[j, i]] for j in range(rows)] for i in range(d)
    ]
    return np.median(np.array(estimates), axis=1)


def heavy(estimates, squared_norm, m):
    """HEAVYMIX: the coordinates with estimate^2 >= |x|^2 / m."""
    return {i for i, e in enumerate(estimates) if e**2 >= squared_norm / m}
