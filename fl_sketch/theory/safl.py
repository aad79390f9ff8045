"""Chen et al.: SAFL on losses of a small intrinsic dimension, Theorem 3.2.

The tails are those of the operator (`tails`), in place of the 1/sqrt(b) that the paper
writes throughout. Where a printed statement has lost a factor that its own proof has,
the factor is kept here. In Theorem 3.2:

- `1 + tail` stands for sqrt(1 + tail) in 1 / J_1: Lemma 3.5 applies the tail to a
  number of the de-sketched mean, and then takes it for the square of that number;
- `2 G K^2` for 2 G: the terms with a change of preconditioner sum K gradients twice;
- `sigma G` for sigma: the noise of gradients is multiplied by a gradient;
- the tail of all coordinates and eigenvectors together in the terms of second order, as
  in Theorem 4.4: there is a product for each of them, and the print counts one.

What stays as the paper has it: constants of one in the tails and in the martingale,
and the tails of fixed vectors for some that depend on the sketch of the round.
"""

import math
from typing import NamedTuple

from fl_sketch.core import validate
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory.bound import Bound, Unreachable, no_less, no_more, positive
from fl_sketch.theory.tails import tail

MOST = 1e100  # rounds: their squares are floats, with whatever stands beside them


class Adaptive(NamedTuple):
    """The constants of SAFL's theorems.

    Attributes:
      smoothness: L, the largest eigenvalue of every client's Hessian.
      intrinsic: `I = sum |lambda| / max |lambda|` of the Hessian, its intrinsic
        dimension; I L is no less than the sum of any Hessian.
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


class Sizes(NamedTuple):
    """How much of everything there is in a run of SAFL.

    Attributes:
      operator: the name of the sketch operator, as configs have it.
      d: the number of parameters.
      b: the number of numbers in a sketch.
      clients: the number C of clients.
      steps: the number K of local steps.
    """

    operator: str
    d: int
    b: int
    clients: int
    steps: int

    def tail(self, delta: float, times: float, *, coordinates: bool = False) -> float:
        """Returns the tail of all inner products together.

        Args:
          delta: the probability that one of them exceeds it.
          times: the number of events for each client and step, as rounds.
          coordinates: whether there is one for every parameter as well.
        """
        events = self.clients * self.steps * times * (self.d if coordinates else 1)
        return tail(self.operator, d=self.d, b=self.b, failure=delta / events)


SAFL = (
    "AMSGrad as printed at the server, and all clients in every round",
    "all gradients are at most G long (Assumptions 1 and 2)",
    "stochastic gradients are sigma-sub-Gaussian (Assumption 3)",
    "clients' Hessians have eigenvalues of at most L, the loss has the intrinsic "
    "dimension I (Assumption 4)",
)


def require_sound(constants: Adaptive) -> None:
    """Raises a ValueError for `constants` that no theorem speaks of."""
    chances = {"delta": constants.delta, "delta_g": constants.delta_g}
    positive(rate=constants.rate, eps=constants.eps, **chances)
    validate.in_range(0, 1, **chances)
    validate.below_one(b1=constants.b1)


def luck(constants: Adaptive, off: float, rounds: int) -> float:
    """Returns what a round adds to the martingale, for one local step.

    Args:
      constants: the constants of the problem.
      off: the tail of one inner product of the round.
      rounds: the number T of rounds.
    """
    c = constants
    noise = c.noise * math.sqrt(math.log(2 * rounds / c.delta_g))
    return c.gradient * (off * c.gradient + noise)


def adaptive_error(
    constants: Adaptive, sizes: Sizes, *, step: float, rounds: int
) -> float:
    """Returns the bound on the mean `|grad L(x_t)|^2` over rounds, SAFL's Theorem 3.2.

    The inequality divided by kappa eta J_1 K T, for any constant step, with the factors
    that the module names; it holds with probability
    1 - O(delta) - O(exp(-nu^2)) - delta_g.

    Args:
      constants: the constants of the problem.
      sizes: the sizes of the run.
      step: the step size eta of the clients.
      rounds: the number T of rounds.
    """
    require_sound(constants)
    positive(step=step, rounds=rounds)
    c, k, square = constants, sizes.steps, constants.gradient**2
    widest = sizes.tail(c.delta, rounds**2, coordinates=True)
    inverse_j1 = (1 + widest) * step * k * c.gradient + c.eps
    smooth = c.rate * step**2 * c.smoothness * k**2 * square * rounds / c.eps
    drawn = luck(c, sizes.tail(c.delta, rounds), rounds)
    martingale = c.nu * c.rate * step * k * math.sqrt(rounds) * drawn / c.eps
    curved = (8 * c.rate * c.intrinsic * c.smoothness + 2 * c.gradient) * k**2
    curved *= step**2 * c.rate * rounds * (1 + widest) ** 2
    curved *= square / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.loss + smooth + martingale + curved
    return total * inverse_j1 / (c.rate * step * k * rounds)


def adaptive_long_run_error(constants: Adaptive, sizes: Sizes, *, rounds: int) -> float:
    """Returns the bound of SAFL's Corollary 1, with the step 1 / (K sqrt T).

    Theorem 3.2 there, with `1 / J_1 <= (2 + tail) eps`, for T >= G^2 / eps^2. The paper
    prints 2 eps for it: its proof drops the factor beside eta K G, which no number of
    rounds makes small at the first T that it admits. It also prints L G^2 / eps where
    the theorem gives L G^2.

    Args:
      constants: the constants of the problem.
      sizes: the sizes of the run.
      rounds: the number T of rounds.

    Raises:
      Unreachable: for fewer rounds than G^2 / eps^2.
    """
    require_sound(constants)
    c, square = constants, constants.gradient**2
    no_less("Chen et al.'s Corollary 1", square / c.eps**2, rounds=rounds)
    widest = sizes.tail(c.delta, rounds**2, coordinates=True)
    curved = 8 * c.rate * c.intrinsic * c.smoothness + 2 * c.gradient
    curved *= (1 + widest) ** 2 * square
    terms = (
        c.loss * c.eps / c.rate,
        c.smoothness * square,
        c.nu * luck(c, sizes.tail(c.delta, rounds), rounds),
        curved / ((1 - c.b1) ** 2 * c.eps),
    )
    return (2 + widest) * sum(terms) / math.sqrt(rounds)


def adaptive_early_error(
    constants: Adaptive, sizes: Sizes, *, rounds: int, ceiling: float
) -> float:
    """Returns the bound of SAFL's Corollary 2, near the start, of order 1 / T.

    With the step 1 / (K sqrt T), for few rounds and a long message: all tails are at
    most 1, which is `b >= log^3(C K d^2 T^2 / delta)` but for the count sketch, whose
    tail is never so short; and `2 G + eps sqrt T <= J_3`, so that
    kappa eta J_1 K >= kappa / J_3.

    The paper prints sqrt(2) G (see the module), T <= (J_3 - sqrt(2) G) / eps^2 where
    the root is ((J_3 - sqrt(2) G) / eps)^2, and all terms but that of L G^2 times eps,
    for which its proof has no reason.

    Args:
      constants: the constants of the problem.
      sizes: the sizes of the run.
      rounds: the number T of rounds.
      ceiling: the number J_3, above 2 G.

    Raises:
      Unreachable: for a message too short, a J_3 too small or too many rounds.
    """
    require_sound(constants)
    positive(rounds=rounds)
    c, square, theorem = constants, constants.gradient**2, "Chen et al.'s Corollary 2"
    widest = sizes.tail(c.delta, rounds**2, coordinates=True)
    no_more(theorem, 1, tail=widest)
    no_less(theorem, 2 * c.gradient, ceiling=ceiling)
    no_more(theorem, ((ceiling - 2 * c.gradient) / c.eps) ** 2, rounds=rounds)
    curved = 4 * (8 * c.rate * c.intrinsic * c.smoothness + 2 * c.gradient) * square
    terms = (
        c.loss / c.rate,
        c.smoothness * square / c.eps,
        c.nu * luck(c, 1, rounds) / c.eps,
        curved / ((1 - c.b1) * c.eps) ** 2,
    )
    return ceiling * sum(terms) / rounds


def adaptive(constants: Adaptive, sizes: Sizes, *, target: float) -> Bound:
    """Returns step, rounds and bits to a mean `|grad|^2` <= target, SAFL's Corollary 1.

    The fewest rounds, found by bisection, from G^2 / eps^2 on.

    Args:
      constants: the constants of the problem.
      sizes: the sizes of the run.
      target: the mean over rounds of `|grad L(x_t)|^2`.

    Raises:
      Unreachable: for a target that takes more than `MOST` rounds.
    """
    positive(target=target)
    require_sound(constants)

    def enough(rounds):
        found = adaptive_long_run_error(constants, sizes, rounds=rounds)
        return found <= target

    first = min(constants.gradient / constants.eps, MOST) ** 2
    low = max(1, math.ceil(first)) - 1
    high = low + 1
    while high > MOST or not enough(high):
        if high > MOST:
            msg = (
                f"Chen et al.'s Corollary 1 takes more than {MOST:g} rounds to "
                f"target={target:g}."
            )
            raise Unreachable(msg)
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return Bound(
        "Chen et al., Theorem 3.2 and Corollary 1",
        1 / (sizes.steps * math.sqrt(high)),
        high,
        sizes.steps,
        FLOAT_BITS * sizes.clients * sizes.b * high,
        (*SAFL, "T >= G^2 / eps^2 rounds"),
    )
