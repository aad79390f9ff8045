"""Counts the privacy that Fed-SGM's printed noise has, without and with a sketch.

python -m experiments.fed_sgm

It writes results/fed_sgm/epsilons.csv. Fed-SGM (NeurIPS 2025) prints epsilons of noise
on whole messages, and smaller noise on sketches R v that is to have the same epsilons.
"""

import csv
import io
import math

import dp_accounting
import numpy as np
from dp_accounting import rdp
from scipy.stats import norm

from experiments.verdicts import RESULTS
from fl_sketch.core import files
from fl_sketch.privacy import accounting

PLAN = accounting.Plan(steps=500, sample=4, population=625)
FIXED = PLAN._replace(sampling="fixed", relation="replace_one")
DELTA = 1e-5
PRINTED = {  # noise on messages: its epsilon, and the noise on sketches
    0.8: (2.75, 0.0883),
    1.0: (1.60, 0.1013),
    2.0: (0.42, 0.1588),
    4.0: (0.18, 0.2265),
}


def earlier(z: float) -> float:
    """Returns epsilon by Renyi divergences and their first conversion, which is loose.

    It is the least r + log(1 / delta) / (order - 1), and gives about the printed ones.
    """
    accountant = rdp.RdpAccountant()
    noise = dp_accounting.GaussianDpEvent(z)
    sample = dp_accounting.PoissonSampledDpEvent(PLAN.rate, noise)
    accountant.compose(sample, PLAN.steps)
    spread = math.log(1 / DELTA) / (np.asarray(accountant.orders) - 1)
    return float(np.min(accountant.rdp + spread))


def shown(z: float) -> float:
    """Returns an epsilon that an attacker shows who sees one number and not R.

    A client's message is C in one coordinate, and the others' are zero. The columns of
    R have length one, so that this coordinate of the model moves by C, if the client is
    in the cohort, plus noise of standard deviation z C. The attacker looks for a round
    in which it moved by more than t C, for the best t.
    """
    t = np.linspace(0.3, 2, 1701)
    by_noise, taken = norm.sf(t / z), PLAN.rate * norm.sf((t - 1) / z)
    seen = (1 - PLAN.rate) * by_noise + taken
    without, present = (-np.expm1(PLAN.steps * np.log1p(-p)) for p in (by_noise, seen))
    possible = present > DELTA
    return float(np.max(np.log((present - DELTA)[possible] / without[possible])))


def row_of(z: float, printed: float, sketched: float) -> dict[str, float]:
    """Returns a row of epsilons.csv."""
    return {
        "noise": z,
        "printed": printed,
        "earlier": earlier(z),
        "epsilon": accounting.epsilon(PLAN, z, delta=DELTA),
        "fixed_cohort": accounting.epsilon(FIXED, z, delta=DELTA),
        "needed": accounting.calibrate(PLAN, epsilon=printed, delta=DELTA),
        "sketched_noise": sketched,
        "sketched_epsilon": accounting.epsilon(PLAN, sketched, delta=DELTA),
        "shown": shown(sketched),
        "shown_of_four": shown(2 * sketched),  # if each of four clients adds it
    }


def page() -> str:
    """Returns the text of results/fed_sgm/epsilons.csv."""
    text = io.StringIO()
    rows = [row_of(z, *others) for z, others in PRINTED.items()]
    out = csv.DictWriter(text, rows[0], lineterminator="\n")
    out.writeheader()
    out.writerows({k: f"{v:.4g}" for k, v in row.items()} for row in rows)
    return text.getvalue()


if __name__ == "__main__":
    files.write_text(RESULTS / "fed_sgm/epsilons.csv", page())
