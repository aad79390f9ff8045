"""Chen et al.: SAFL without a bound on gradients, Theorem 4.4.

Losses along the way stay below G / (2 L), and so squared gradients below G, for a G
that is found rather than assumed: the smallest that closes the chain of inequalities of
the proof, a root of a quadratic equation in sqrt(G). The print of G (equation 4 in
appendix C) loses factors of the chain, which docs/theory.md lists.
"""

import math

from fl_sketch.theory.bound import Bound, Theorem
from fl_sketch.theory.constants import Constants
from fl_sketch.theory.safl import ASSUMPTIONS
from fl_sketch.theory.tails import joint_tail

THEOREM_4_4 = Theorem(
    "Chen et al., Theorem 4.4",
    (
        *("smoothness", "intrinsic", "deviation", "start", "clients", "steps"),
        *("d", "b", "b1", "b2", "eps", "delta", "delta_g", "nu", "rounds"),
    ),
    (ASSUMPTIONS[0], *ASSUMPTIONS[2:]),
)


def adaptive_confined(constants: Constants) -> Bound:
    """Returns what Theorem 4.4 gives for a number of rounds.

    The server's rate is kappa = 1 / sqrt(G), and the step that of the constants or, if
    it is unknown, the largest. G is `Bound.largest`, which no `|grad f|^2` exceeds; the
    error is their mean over rounds. The paper's delta_c is the constant `delta_g`.
    """
    c, k, length = THEOREM_4_4.require(constants), constants.steps, constants.smoothness
    first = longest = _largest(c)
    if not math.isnan(c.step):
        first = c.step * math.sqrt(c.rounds)
        THEOREM_4_4.at_most(longest / math.sqrt(c.rounds), step=c.step)
    off = joint_tail(c, c.rounds)
    grown = 1 + joint_tail(c, c.rounds, coordinates=True)
    moved, shrunk = first * k / c.eps, 1 - c.b1
    # f(x_T) <= constant + 2 rooted sqrt(G) + linear G, which is to be G / (2 L).
    linear = 16 * math.sqrt(1 - c.b2) * (grown * moved) ** 2 / shrunk
    rooted = 2 * math.sqrt(2) * moved * (first * k * length + c.nu * off)
    curved = (32 + 8 * (1 + c.b1) ** 2) * c.intrinsic
    curved += 4 * c.b1**2 * (1 + c.intrinsic) / c.rounds
    constant = 2 * c.start + 2 * c.nu * moved * c.deviation
    constant += length * (grown * moved / shrunk) ** 2 * curved
    left = 1 / (2 * length) - linear
    chain = (rooted + math.sqrt(rooted**2 + left * constant)) / left
    events = 2 * c.clients * k / c.delta_g
    noisy = 2 * c.deviation * (1 + math.sqrt(2 * math.log(events)))
    square = max(chain**2, noisy**2 / 2)
    # Sketched gradients: the bound on those of clients, grown by the tail.
    widest = 1 + joint_tail(c, c.rounds**2, coordinates=True)
    step = first / math.sqrt(c.rounds)
    reach = widest * step * k * (math.sqrt(2 * square) + noisy) + c.eps
    error = square**1.5 * reach / (4 * length * first * k * math.sqrt(c.rounds))
    bound = THEOREM_4_4.bound(c, error, step=step, server_rate=1 / math.sqrt(square))
    return bound._replace(largest=square)


def _largest(constants: Constants) -> float:
    """Returns the largest eta_0 = eta sqrt(T) of Theorem 4.4.

    The three limits of the paper, and one under which the terms with a change of
    preconditioner take half of G / (2 L).
    """
    c, root = constants, math.sqrt(constants.smoothness)
    grown = 1 + joint_tail(c, c.rounds, coordinates=True)
    changing = 8 * root * c.steps * (1 - c.b2) ** 0.25 / math.sqrt(1 - c.b1)
    limits = [
        c.eps / (6 * root * grown),
        c.eps / (changing * grown),
        math.sqrt(c.rounds) / (2 * c.smoothness * math.sqrt(c.steps)),
    ]
    if c.b1:
        limits.append(c.eps * (1 - c.b1) / (4 * c.b1 * c.smoothness * grown))
    return min(limits)
