"""Chen et al.: SAFL without a bound on gradients, Theorem 4.4.

Losses along the way stay below G / (2 L), and so squared gradients below G, for a G
that is found rather than assumed. The printed G (equation 4 in appendix C) comes of a
chain of inequalities that loses factors: K^2 where a preconditioner changes, for which
G must then be larger, and which the step must hold down; L beside nu in the square; and
in the last line L stands for K. Here the same chain is closed with these factors, by
the smallest G that closes it: the root of a quadratic equation in sqrt(G).
"""

import math
from typing import NamedTuple

from fl_sketch.core import validate
from fl_sketch.theory.bound import no_more, positive
from fl_sketch.theory.safl import Sizes


class Unassuming(NamedTuple):
    """The constants of Theorem 4.4, among which is no bound on gradients.

    Attributes:
      smoothness: L, the largest eigenvalue of every client's Hessian.
      intrinsic: I, the intrinsic dimension; I L is no less than the sum of any Hessian.
      deviation: Delta, which the noise of a gradient exceeds with a probability of
        exp(-Delta^2 / sigma^2); 0 without noise.
      loss: L(z_1), the loss at the start over its lower bound of 0.
      b1: the decay beta_1 of the first moment.
      b2: the decay beta_2 of the second moment.
      eps: the number epsilon of AMSGrad.
      delta: the chance that the sketches mislead.
      delta_c: the chance that a client's gradients do.
      nu: a free number; the theorem fails with a probability of order exp(-nu^2).
    """

    smoothness: float
    intrinsic: float
    deviation: float
    loss: float
    b1: float
    b2: float
    eps: float
    delta: float = 1e-3
    delta_c: float = 1e-3
    nu: float = 1.0


class Confined(NamedTuple):
    """What Theorem 4.4 gives.

    Attributes:
      square: G, which no `|grad L(x_t)|^2` exceeds.
      rate: the rate kappa of the server, 1 / sqrt(G).
      step: the step size eta of the clients, eta_0 / sqrt(T).
      error: the bound on the mean over rounds of `|grad L(x_t)|^2`.
    """

    square: float
    rate: float
    step: float
    error: float


def adaptive_confined_largest(
    constants: Unassuming, sizes: Sizes, *, rounds: int
) -> float:
    """Returns the largest eta_0 = eta sqrt(T) of Theorem 4.4.

    The three limits of the paper, and one under which the terms with a change of
    preconditioner take half of G / (2 L).

    Args:
      constants: the constants of the problem.
      sizes: the sizes of the run.
      rounds: the number T of rounds.
    """
    c, k = constants, sizes.steps
    chances = {"delta": c.delta, "delta_c": c.delta_c}
    positive(smoothness=c.smoothness, eps=c.eps, rounds=rounds, **chances)
    validate.in_range(0, 1, **chances)
    validate.below_one(b1=c.b1, b2=c.b2)
    root = math.sqrt(c.smoothness)
    grown = 1 + sizes.tail(c.delta, rounds, coordinates=True)
    changing = 8 * root * k * (1 - c.b2) ** 0.25 / math.sqrt(1 - c.b1)
    limits = [
        c.eps / (6 * root * grown),
        c.eps / (changing * grown),
        math.sqrt(rounds) / (2 * c.smoothness * math.sqrt(k)),
    ]
    if c.b1:
        limits.append(c.eps * (1 - c.b1) / (4 * c.b1 * c.smoothness * grown))
    return min(limits)


def adaptive_confined(
    constants: Unassuming, sizes: Sizes, *, rounds: int, first: float
) -> Confined:
    """Returns what SAFL's Theorem 4.4 gives.

    Args:
      constants: the constants of the problem.
      sizes: the sizes of the run.
      rounds: the number T of rounds.
      first: the number eta_0, at most `adaptive_confined_largest`.

    Raises:
      Unreachable: for a larger eta_0.
    """
    c, k, length = constants, sizes.steps, constants.smoothness
    positive(first=first)
    longest = adaptive_confined_largest(c, sizes, rounds=rounds)
    no_more("Chen et al.'s Theorem 4.4", longest, first=first)
    off = sizes.tail(c.delta, rounds)
    grown = 1 + sizes.tail(c.delta, rounds, coordinates=True)
    moved, shrunk = first * k / c.eps, 1 - c.b1
    # L(x_T) <= constant + 2 rooted sqrt(G) + linear G, which is to be G / (2 L).
    linear = 16 * math.sqrt(1 - c.b2) * (grown * moved) ** 2 / shrunk
    rooted = 2 * math.sqrt(2) * moved * (first * k * length + c.nu * off)
    curved = (32 + 8 * (1 + c.b1) ** 2) * c.intrinsic
    curved += 4 * c.b1**2 * (1 + c.intrinsic) / rounds
    constant = 2 * c.loss + 2 * c.nu * moved * c.deviation
    constant += length * (grown * moved / shrunk) ** 2 * curved
    left = 1 / (2 * length) - linear
    chain = (rooted + math.sqrt(rooted**2 + left * constant)) / left
    events = 2 * sizes.clients * k / c.delta_c
    noisy = 2 * c.deviation * (1 + math.sqrt(2 * math.log(events)))
    square = max(chain**2, noisy**2 / 2)
    # Sketched gradients: the bound on those of clients, grown by the tail.
    widest = 1 + sizes.tail(c.delta, rounds**2, coordinates=True)
    step = first / math.sqrt(rounds)
    reach = widest * step * k * (math.sqrt(2 * square) + noisy) + c.eps
    error = square**1.5 * reach / (4 * length * first * k * math.sqrt(rounds))
    return Confined(square, 1 / math.sqrt(square), step, error)
