"""Chen et al.: SAFL on losses of a small intrinsic dimension."""

import math
from typing import NamedTuple

from fl_sketch.theory.bound import Bound, positive
from fl_sketch.wire import FLOAT_BITS


class Adaptive(NamedTuple):
    """The constants of SAFL's theorems.

    Attributes:
      smoothness: L, the largest eigenvalue of every client's Hessian.
      intrinsic: `I = sum |lambda| / max |lambda|` of the Hessian, its intrinsic
        dimension.
      gradient: G, no less than the length of a gradient, of a client or of all.
      noise: the size sigma of the noise of gradients: they are sigma-sub-Gaussian.
      loss: L(z_1), the loss at the start over its lower bound of 0.
      rate: the rate kappa of the server.
      b1: the decay beta_1 of the first moment.
      eps: the number epsilon of AMSGrad.
      delta: the chance that the sketches mislead.
      delta_g: the chance that the stochastic gradients do.
      nu: a free number; the theorem fails with a probability of order exp(-nu^2).
    """

    smoothness: float
    intrinsic: float
    gradient: float
    noise: float
    loss: float
    rate: float
    b1: float
    eps: float
    delta: float = 1e-3
    delta_g: float = 1e-3
    nu: float = 1.0


SAFL = (
    "AMSGrad as printed at the server, and all clients in every round",
    "all gradients are at most G long (Assumptions 1 and 2)",
    "stochastic gradients are sigma-sub-Gaussian (Assumption 3)",
    "clients' Hessians have eigenvalues of at most L, the loss has the intrinsic "
    "dimension I (Assumption 4)",
)


def adaptive_error(
    constants: Adaptive,
    *,
    step: float,
    rounds: int,
    steps: int,
    clients: int,
    d: int,
    b: int,
) -> float:
    """Returns the bound on the mean `|grad L(x_t)|^2` over rounds, SAFL's Theorem 3.2.

    The printed inequality divided by kappa eta J_1 K T, for any constant step; it
    holds with probability 1 - O(delta) - O(exp(-nu^2)) - delta_g.

    Args:
      constants: the constants of the problem.
      step: the step size eta of the clients.
      rounds: the number T of rounds.
      steps: the number K of local steps.
      clients: the number C of clients.
      d: the number of parameters.
      b: the number of numbers in a sketch.
    """
    c, k, eta, root = constants, steps, step, math.sqrt(rounds)

    def tail(d_power, rounds_power):
        grown = clients * k * d**d_power * rounds**rounds_power / c.delta
        return math.log(grown) ** 1.5 / math.sqrt(b)

    inverse_j1 = math.sqrt(1 + tail(2, 2)) * eta * k * c.gradient + c.eps
    square = c.gradient**2
    smooth = c.rate * eta**2 * c.smoothness * k**2 * square * rounds / c.eps
    luck = tail(1, 1) * square + c.noise * math.sqrt(math.log(2 * rounds / c.delta_g))
    martingale = c.nu * c.rate * eta * k * root * luck / c.eps
    curved = 8 * c.rate * c.intrinsic * c.smoothness * k**2 + 2 * c.gradient
    curved *= eta**2 * c.rate * rounds * (1 + tail(1, 2)) ** 2
    curved *= square / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.loss + smooth + martingale + curved
    return total * inverse_j1 / (c.rate * eta * k * rounds)


def adaptive_long_run_error(
    constants: Adaptive, *, rounds: int, steps: int, clients: int, d: int, b: int
) -> float:
    """Returns the bound of SAFL's Corollary 1, with the step 1 / (K sqrt T).

    For T >= G^2 / eps^2; below that many rounds it is not promised.

    Args:
      constants: the constants of the problem.
      rounds: the number T of rounds.
      steps: the number K of local steps.
      clients: the number C of clients.
      d: the number of parameters.
      b: the number of numbers in a sketch.
    """
    c, root = constants, math.sqrt(rounds)
    j2 = math.log(clients * steps * d * rounds**2 / c.delta) ** 1.5 / math.sqrt(b)
    square = c.gradient**2
    curved = (4 * c.rate * c.intrinsic * c.smoothness + c.gradient) / (1 - c.b1) ** 2
    luck = j2 * square + c.noise * math.sqrt(math.log(2 * rounds / c.delta_g))
    terms = (
        4 * (1 + j2) ** 2 * curved * square / c.eps,
        2 * c.loss * c.eps / c.rate,
        2 * c.smoothness * square / c.eps,
        2 * c.nu * luck,
    )
    return sum(terms) / root


def adaptive(
    constants: Adaptive, *, target: float, steps: int, clients: int, d: int, b: int
) -> Bound:
    """Returns step, rounds and bits to a mean `|grad|^2` <= target, SAFL's Corollary 1.

    The fewest rounds, found by bisection, from G^2 / eps^2 on.

    Args:
      constants: the constants of the problem.
      target: the mean over rounds of `|grad L(x_t)|^2`.
      steps: the number K of local steps.
      clients: the number C of clients.
      d: the number of parameters.
      b: the number of numbers in a sketch.
    """
    positive(target=target, rate=constants.rate, eps=constants.eps)

    def enough(rounds):
        found = adaptive_long_run_error(
            constants, rounds=rounds, steps=steps, clients=clients, d=d, b=b
        )
        return found <= target

    low = max(1, math.ceil((constants.gradient / constants.eps) ** 2)) - 1
    high = low + 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return Bound(
        "Chen et al., Theorem 3.2 and Corollary 1",
        1 / (steps * math.sqrt(high)),
        high,
        steps,
        FLOAT_BITS * clients * b * high,
        (*SAFL, "T >= G^2 / eps^2 rounds"),
    )
