"""FedSKETCH and its relatives line by line in numpy, on |x - o_i|^2 / 2.

Devices hold their own copies of the model, as in the papers; who takes part is given.
Hashes are those of the library, read off unit vectors, and so is the draw of the
coordinates that fill up HEAVYMIX.
"""

import numpy as np

from fl_sketch.core.keys import round_keys
from tests.oracles.rounds import heavy_coordinates, local_sgd, matrix
from tests.quadratics import COUNT, RATE, STEPS, D

ROWS = 3


class Hashes:
    """S of one round: t rows, whose entries are not divided by sqrt(t)."""

    def __init__(self, key, number):
        self.key = round_keys(key, number, 0).shared
        self.rows = matrix(COUNT, self.key).reshape(ROWS, -1, D) * ROWS**0.5

    def sketch(self, x):
        return self.rows @ x

    def privix(self, table):
        """Algorithm 2."""
        pairs = zip(self.rows, table, strict=True)
        return np.median([row.T @ s for row, s in pairs], axis=0)

    def heavymix(self, table, exact, m):
        """Algorithm 3, given the exact values."""
        index = heavy_coordinates(self.key, table, m)
        kept = np.zeros(D)
        kept[index] = exact[index]
        return kept

    def heaprix(self, x, m):
        """Algorithm 4."""
        heavy = self.heavymix(self.sketch(x), x, m)
        return heavy + self.privix(self.sketch(x - heavy))


def fedsketch(optima, cohorts, key, *, gamma, query, m):
    """Algorithm 5. Returns x."""
    x = np.zeros(D)
    for r, cohort in enumerate(cohorts):
        hashes = Hashes(key, r)
        updates = [local_sgd(x, optima[j]) for j in cohort]  # lines 10-13
        sent = [hashes.sketch(u) for u in updates]  # line 14
        mean = np.mean(sent, axis=0)  # line 16
        if query == "privix":
            phi = hashes.privix(mean)  # line 5
        else:
            kept = [hashes.heavymix(mean, u, m) for u in updates]
            deltas = [hashes.sketch(k) for k in kept]  # line 19
            s_tilde = np.mean(deltas, axis=0)  # line 20
            phi = np.mean(kept, axis=0) + hashes.privix(mean - s_tilde)  # line 7
        x = x - gamma * phi  # line 8
    return x


def fedsketchgate(optima, cohorts, key, *, gamma, gain, query, m):
    """Algorithm 6, some devices at a time. Returns (x, c)."""
    x, c = np.zeros(D), np.zeros((len(optima), D))
    for r, cohort in enumerate(cohorts):
        hashes = Hashes(key, r)
        updates = [_tracked(x, optima[j], c[j]) for j in cohort]  # lines 11-14
        mean = np.mean([hashes.sketch(u) for u in updates], axis=0)  # line 17
        if query == "privix":
            phi = hashes.privix(mean)  # line 6
            own = [hashes.privix(hashes.sketch(u)) for u in updates]
        else:
            own = [hashes.heaprix(u, m) for u in updates]  # line 19
            kept = [hashes.heavymix(mean, u, m) for u in updates]
            s_tilde = np.mean([hashes.sketch(k) for k in kept], axis=0)  # lines 20-21
            phi = np.mean(kept, axis=0) + hashes.privix(mean - s_tilde)  # line 9
        for j, phi_j in zip(cohort, own, strict=True):
            c[j] -= gain * (phi - phi_j)  # lines 5 and 8
        x = x - gamma * phi  # line 10
    return x, c


def scaffold(optima, cohorts, *, gamma):
    """Karimireddy et al., Algorithm 1, option II, both messages sent. Returns x."""
    x, c, own = np.zeros(D), np.zeros(D), np.zeros((len(optima), D))
    for cohort in cohorts:
        moves, changes = [], []
        for i in cohort:
            moved = _tracked(x, optima[i], own[i] - c)
            plus = own[i] - c + moved / (STEPS * RATE)
            moves.append(moved)
            changes.append(plus - own[i])
            own[i] = plus
        x = x - gamma * np.mean(moves, axis=0)
        c = c + len(cohort) / len(optima) * np.mean(changes, axis=0)
    return x


def _tracked(x, optimum, variate):
    """tau steps along the gradient less the variate; returns x_0 - x_tau."""
    start = x
    for _ in range(STEPS):
        x = x - RATE * ((x - optimum) - variate)
    return start - x
