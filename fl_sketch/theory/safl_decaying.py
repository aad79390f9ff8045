"""Chen et al.: SAFL with steps that decay, Theorem B.3.

The step of round t is 1 / (K sqrt(t + T_0)), T_0 = ceil(1 / (1 - beta_1^2)). Beside the
factors that `safl` names, the print lost some here. v_hat is the largest of all rounds,
so that its bound has the first step, not that of round t; the J of Lemma B.4, by which
moments lag behind the steps, belongs to the moments and not to v_hat; the descent has a
factor K; the squares of steps sum to log(1 + T / T_0), of which the martingale has the
root; and the terms with a change of preconditioner are dropped.
"""

import math

from fl_sketch.theory.bound import positive
from fl_sketch.theory.safl import Adaptive, Sizes, luck, require_sound


def _delay(b1: float) -> int:
    """Returns T_0 of Theorem B.3."""
    return math.ceil(1 / (1 - b1**2))


def adaptive_decaying_step(round: int, *, b1: float, steps: int) -> float:
    """Returns the clients' step of Theorem B.3.

    Args:
      round: the number t of the round, from 1 on.
      b1: the decay beta_1 of the first moment.
      steps: the number K of local steps.
    """
    return 1 / (steps * math.sqrt(round + _delay(b1)))


def adaptive_decaying_error(constants: Adaptive, sizes: Sizes, *, rounds: int) -> float:
    """Returns the bound on the mean `|grad L(x_t)|^2` over rounds, SAFL's Theorem B.3.

    The theorem bounds a sum over rounds with weights kappa eta_t K J_1, which fall; the
    last of them, the smallest, stands for all. Of order log(T) / sqrt(T).

    Args:
      constants: the constants of the problem.
      sizes: the sizes of the run.
      rounds: the number T of rounds.
    """
    require_sound(constants)
    positive(rounds=rounds)
    c, delay, square = constants, _delay(constants.b1), constants.gradient**2
    energy = math.log1p(rounds / delay)  # of all steps, times K
    lag = (1 - c.b1) / (1 - c.b1 * math.sqrt((delay + 1) / delay))
    widest = sizes.tail(c.delta, rounds**2, coordinates=True)
    inverse_j1 = (1 + widest) * c.gradient / math.sqrt(1 + delay) + c.eps
    smooth = c.rate * c.smoothness * square * energy / c.eps
    drawn = luck(c, sizes.tail(c.delta, rounds), rounds)
    martingale = c.nu * c.rate * math.sqrt(energy) * drawn / c.eps
    curved = 8 * c.rate * lag**2 * c.intrinsic * c.smoothness + 2 * lag * c.gradient
    curved *= c.rate * energy * (1 + widest) ** 2
    curved *= square / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.loss + smooth + martingale + curved
    return total * inverse_j1 * math.sqrt(rounds + delay) / (c.rate * rounds)
