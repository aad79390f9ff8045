"""Shows statements of the four papers to be false as printed, by one number each.

python -m experiments.errata

It writes results/theory/errata.csv: what a statement promises of a problem, and what is
true of it. docs/errata.md explains the rows.
"""

import csv
import io
import math

import numpy as np
from scipy.stats import norm

from experiments.verdicts import RESULTS
from fl_sketch.core import files
from fl_sketch.theory import fedsketch

Row = tuple[str, str, float, float]  # statement, what is counted, promised, true


def song_g2() -> Row:
    """Descent on log(1 + x^2) / 2 from 0.1: L = K = gamma = 1, G = 1/2, no sketch."""
    eta, rounds, x, squares = 1e-3, 100, 0.1, []
    promised = math.log1p(x**2) / 2 / rounds + eta * 0.25 * (eta + eta / 2)
    for _ in range(rounds):
        slope = x / (1 + x**2)
        squares.append(slope**2)
        x -= eta * slope
    return (
        "Song G.2",
        "mean |grad f|^2 over 100 rounds",
        promised,
        float(np.mean(squares)),
    )


def song_k3() -> Row:
    """One step of 0.01 on (2 x)^2."""
    eta = 0.01
    counted = "part of the squared distance that a step leaves"
    return "Song K.3", counted, (4 * eta) ** 2, (1 - 8 * eta) ** 2


def chen_property_3() -> Row:
    """A count sketch, and v = h = (1, 1) / sqrt 2, whose coordinates may collide.

    Then <R'Rv - v, h> is 1 or -1. By the print it is above log^1.5(d / delta) / sqrt b,
    which is below 1 here, with a probability of at most delta.
    """
    b = 10**6
    delta = 1 / (2 * b)
    assert math.log(2 / delta) ** 1.5 / math.sqrt(b) < 1
    return "Chen Property 3", "probability of an error of 1", delta, 1 / b


def haddadpour_5() -> Row:
    """64 clients with the loss |w|^2 / 2, one local step, a count sketch of one row.

    The step is the longest of condition (16) with omega / k + 1. The server reads the
    mean of sketches with the same hashes, which has the error of one. Without noise the
    theorem promises its first term.
    """
    d, cols, clients, rounds, runs = 64, 8, 64, 12, 100
    omega = math.e * d / cols / clients
    eta = fedsketch.longest_step(L=1.0, tau=1, gamma=float(clients), omega=omega)
    random, squares = np.random.default_rng(0), []
    for _ in range(runs):
        w = np.ones(d) / math.sqrt(d)
        for _ in range(rounds):
            squares.append(w @ w)
            places, signs = random.integers(cols, size=d), random.choice([-1, 1], d)
            message = np.bincount(places, signs * w, cols)
            w = w - eta * clients * signs * message[places]
    promised = 1 / (eta * clients * rounds)
    return (
        "Haddadpour 5",
        "mean |grad f|^2 over 12 rounds",
        promised,
        float(np.mean(squares)),
    )


def haddadpour_2() -> Row:
    """The step and local steps of Theorem 2 in results/theory: d = 64, 16 columns."""
    clients, tau, eta = 4, 99, 0.004469
    omega = math.e * 64 / 16
    left = (tau * eta) ** 2 + (omega / clients + 1) * clients * tau * eta
    return "Haddadpour 2", "left side of condition (16)", 1.0, left


def haddadpour_1() -> Row:
    """A number of size C or -C among 4e5 numbers of N(0, 1), in a row of three buckets.

    An attacker who knows the hashes sees a bucket with a mean of C or -C and the
    deviation of l / m numbers. The privacy loss is normal, N(mu^2 / 2, mu^2). Nearly
    all such vectors are bounded by C, as the theorem asks. It promises no such loss.
    """
    m, length, C, alpha = 3, 4e5, 5.5, 3
    inside = alpha * C**2 * m * (m - 1) * (1 + math.log(length - m)) / (length - 2)
    assert inside <= 0.5 - 1 / alpha
    claim = math.log1p(inside)
    mu = 2 * C / math.sqrt(length / m)
    beyond = float(norm.sf((claim - mu**2 / 2) / mu))
    counted = f"chance of a privacy loss above epsilon = {claim:.3g}"
    return "Haddadpour 1", counted, 0.0, beyond


def das_23() -> Row:
    """100 clients with equal updates of length one, each in a cohort by chance 1/5."""
    clients, cohort = 100, 20
    square = 1 + 1 / cohort - 1 / clients
    return "Das equation 23", "mean square of a cohort's sum over 20", 1.0, square


def page() -> str:
    """Returns the text of results/theory/errata.csv."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["statement", "counted", "promised", "true"])
    shown = (
        song_g2,
        song_k3,
        chen_property_3,
        haddadpour_5,
        haddadpour_2,
        das_23,
        haddadpour_1,
    )
    for name, counted, promised, true in (show() for show in shown):
        out.writerow([name, counted, f"{promised:.3g}", f"{true:.3g}"])
    return text.getvalue()


if __name__ == "__main__":
    files.write_text(RESULTS / "theory/errata.csv", page())
