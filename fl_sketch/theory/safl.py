"""Chen et al.: SAFL on losses of a small intrinsic dimension.

The tails are those of the operator, in place of the 1/sqrt(b) that the paper writes
throughout, and the factors are those of the proofs: docs/theory.md lists where they
differ from the print. Constants of one in the tails and in the martingale stay as the
paper has them, and the tails of fixed vectors for some that depend on the sketch.
"""

import math
from dataclasses import replace

from fl_sketch.theory.bound import Bound, Theorem, Unreachable
from fl_sketch.theory.constants import Constants
from fl_sketch.theory.tails import joint_tail

MOST = 1e100  # rounds: their squares are floats
NEEDS = (
    *("smoothness", "intrinsic", "gradient", "noise", "start", "server_rate"),
    *("clients", "steps", "d", "b", "b1", "eps", "delta", "delta_g", "nu"),
)
ASSUMPTIONS = (
    "AMSGrad as printed at the server, and all clients in every round",
    "all gradients are at most G long (Assumptions 1 and 2)",
    "stochastic gradients are sigma-sub-Gaussian (Assumption 3)",
    "clients' Hessians have eigenvalues of at most L, the loss has the intrinsic "
    "dimension I (Assumption 4)",
)


def adaptive(constants: Constants) -> Bound:
    """Returns the bound on the mean `|grad f|^2` over rounds of Theorem 3.2.

    The inequality divided by kappa eta J_1 K T, for any constant step. It holds with
    probability 1 - O(delta) - O(exp(-nu^2)) - delta_g.
    """
    needs = *NEEDS, "step", "rounds"
    theorem = Theorem("Chen et al., Theorem 3.2", needs, ASSUMPTIONS)
    c = theorem.require(constants)
    k, step, square = c.steps, c.step, c.gradient**2
    widest = joint_tail(c, c.rounds**2, coordinates=True)
    inverse_j1 = (1 + widest) * step * k * c.gradient + c.eps
    smooth = c.server_rate * step**2 * c.smoothness * k**2 * square * c.rounds / c.eps
    drawn = _drawn(c, joint_tail(c, c.rounds))
    martingale = c.nu * c.server_rate * step * k * math.sqrt(c.rounds) * drawn / c.eps
    curved = (8 * c.server_rate * c.intrinsic * c.smoothness + 2 * c.gradient) * k**2
    curved *= step**2 * c.server_rate * c.rounds * (1 + widest) ** 2
    curved *= square / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.start + smooth + martingale + curved
    error = total * inverse_j1 / (c.server_rate * step * k * c.rounds)
    return theorem.bound(c, error)


def adaptive_long_run(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound of Corollary 1, with the step 1 / (K sqrt T).

    Theorem 3.2 there, with `1 / J_1 <= (2 + tail) eps`, for T >= G^2 / eps^2; for a
    target the fewest rounds, by bisection from there on.
    """
    name = "Chen et al., Theorem 3.2 and Corollary 1"
    theorem = Theorem(name, NEEDS, (*ASSUMPTIONS, "T >= G^2 / eps^2 rounds"))
    c = theorem.require(constants, target)
    if target is not None:
        c = replace(c, rounds=_fewest_rounds(theorem, c, target))
    theorem.at_least(max(1, c.gradient**2 / c.eps**2), rounds=c.rounds)
    step = 1 / (c.steps * math.sqrt(c.rounds))
    return theorem.bound(c, _long_run_error(c), step=step)


def _long_run_error(constants: Constants) -> float:
    c, square = constants, constants.gradient**2
    widest = joint_tail(c, c.rounds**2, coordinates=True)
    curved = 8 * c.server_rate * c.intrinsic * c.smoothness + 2 * c.gradient
    curved *= (1 + widest) ** 2 * square
    terms = (
        c.start * c.eps / c.server_rate,
        c.smoothness * square,
        c.nu * _drawn(c, joint_tail(c, c.rounds)),
        curved / ((1 - c.b1) ** 2 * c.eps),
    )
    return (2 + widest) * sum(terms) / math.sqrt(c.rounds)


def _fewest_rounds(theorem: Theorem, constants: Constants, target: float) -> int:
    """Returns the fewest rounds, at least G^2 / eps^2, with an error <= target."""

    def enough(rounds):
        return _long_run_error(replace(constants, rounds=rounds)) <= target

    first = min(constants.gradient / constants.eps, MOST) ** 2
    low = max(1, math.ceil(first)) - 1
    high = low + 1
    while high > MOST or not enough(high):
        if high > MOST:
            msg = (
                f"{theorem.name} takes more than {MOST:g} rounds to target={target:g}."
            )
            raise Unreachable(msg)
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def adaptive_early(constants: Constants, *, ceiling: float) -> Bound:
    """Returns the bound of Corollary 2, near the start, of order 1 / T.

    With the step 1 / (K sqrt T), for few rounds and a long message: all tails are at
    most 1, which is `b >= log^3(C K d^2 T^2 / delta)` but for the count sketch, whose
    tail is never so short; and `2 G + eps sqrt T <= J_3`, the `ceiling`, so that
    kappa eta J_1 K >= kappa / J_3.
    """
    theorem = Theorem("Chen et al., Corollary 2", (*NEEDS, "rounds"), ASSUMPTIONS)
    c, square = theorem.require(constants), constants.gradient**2
    theorem.at_most(1, tail=joint_tail(c, c.rounds**2, coordinates=True))
    theorem.at_least(2 * c.gradient, ceiling=ceiling)
    theorem.at_most(((ceiling - 2 * c.gradient) / c.eps) ** 2, rounds=c.rounds)
    curved = 8 * c.server_rate * c.intrinsic * c.smoothness + 2 * c.gradient
    terms = (
        c.start / c.server_rate,
        c.smoothness * square / c.eps,
        c.nu * _drawn(c, 1) / c.eps,
        4 * curved * square / ((1 - c.b1) * c.eps) ** 2,
    )
    step = 1 / (c.steps * math.sqrt(c.rounds))
    return theorem.bound(c, ceiling * sum(terms) / c.rounds, step=step)


def _drawn(constants: Constants, off: float) -> float:
    """Returns what a round adds to the martingale, if inner products are `off`."""
    c = constants
    noise = c.noise * math.sqrt(math.log(2 * c.rounds / c.delta_g))
    return c.gradient * (off * c.gradient + noise)


def adaptive_decaying_step(constants: Constants, round: int) -> float:
    """Returns the clients' step 1 / (K sqrt(t + T_0)) of Theorem B.3, from t = 1 on."""
    return 1 / (constants.steps * math.sqrt(round + _delay(constants.b1)))


def _delay(b1: float) -> int:
    """Returns T_0 of Theorem B.3."""
    return math.ceil(1 / (1 - b1**2))


def adaptive_decaying(constants: Constants) -> Bound:
    """Returns the bound on the mean `|grad f|^2` over rounds of Theorem B.3.

    With `adaptive_decaying_step`; the step of the `Bound` is that of the last round.
    The theorem bounds a sum over rounds with weights kappa eta_t K J_1, which fall; the
    last of them, the smallest, stands for all. Of order log(T) / sqrt(T).
    """
    theorem = Theorem("Chen et al., Theorem B.3", (*NEEDS, "rounds"), ASSUMPTIONS)
    c, square = theorem.require(constants), constants.gradient**2
    delay = _delay(c.b1)
    energy = math.log1p(c.rounds / delay)  # of all steps, times K
    lag = (1 - c.b1) / (1 - c.b1 * math.sqrt((delay + 1) / delay))
    widest = joint_tail(c, c.rounds**2, coordinates=True)
    inverse_j1 = (1 + widest) * c.gradient / math.sqrt(1 + delay) + c.eps
    smooth = c.server_rate * c.smoothness * square * energy / c.eps
    drawn = _drawn(c, joint_tail(c, c.rounds))
    martingale = c.nu * c.server_rate * math.sqrt(energy) * drawn / c.eps
    curved = 8 * c.server_rate * lag**2 * c.intrinsic * c.smoothness
    curved += 2 * lag * c.gradient
    curved *= c.server_rate * energy * (1 + widest) ** 2
    curved *= square / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.start + smooth + martingale + curved
    error = (
        total * inverse_j1 * math.sqrt(c.rounds + delay) / (c.server_rate * c.rounds)
    )
    return theorem.bound(c, error, step=adaptive_decaying_step(c, c.rounds))
