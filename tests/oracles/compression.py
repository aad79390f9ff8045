"""E|x_hat - x|^2 of every compressor, exactly, and the bounds that they promise."""

import numpy as np


def top_k(k):
    """What is not kept: the smallest squares."""
    return lambda x: np.sum(np.sort(x**2)[: x.size - k])


def random_k(k):
    """(d/k - 1) |x|^2."""
    return lambda x: (x.size / k - 1) * (x @ x)


def random_k_biased(k):
    """(1 - k/d) |x|^2."""
    return lambda x: (1 - k / x.size) * (x @ x)


def sign(x):
    """Of numbers that become one or minus one."""
    return np.sum((np.abs(x) - 1) ** 2)


def scaled_sign(x):
    """|x|^2 - |x|_1^2 / d."""
    return x @ x - np.sum(np.abs(x)) ** 2 / x.size


def qsgd(levels):
    """A ratio between two levels goes up with a probability of what it is above one."""

    def error(x):
        unit = np.linalg.norm(x) / levels
        above = np.abs(x) / (unit or 1) % 1
        return unit**2 * np.sum(above * (1 - above))

    return error


def nearest(levels):
    """To the nearest multiple of a part of the largest magnitude."""

    def error(x):
        unit = np.abs(x).max() / levels
        ratio = np.abs(x) / (unit or 1)
        return unit**2 * np.sum((ratio - np.round(ratio)) ** 2)

    return error


def top_then_sign(k):
    """What is not kept, and what signs leave of the rest."""
    kept = top_k(k)
    return lambda x: kept(x) + scaled_sign(np.sort(np.abs(x))[-k:])


def at_most(share):
    """A share of |x|^2."""
    return lambda x: share(x.size) * (x @ x)


def nearest_at_most(levels):
    """No number changes by more than itself, or half of a level."""
    return lambda x: np.sum(np.minimum(x**2, (np.abs(x).max() / 2 / levels) ** 2))
