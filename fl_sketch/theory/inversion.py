"""Song et al.: the descent of an attacker to an input, Theorems K.2 and K.3.

The attacker minimises L(x), zero at the input x* that the message is of, by plain
gradient descent. L has four properties, for all x and y; the proofs use them for one of
both at x*::

  semi-strongly convex      L(x) >= L(y) + <grad L(y), x - y> + mu/2 |x - y|^2
                                    - c |x - y|^(2 - 2p) L(y)^p
  semi-Lipschitz gradient   |grad L(x) - grad L(y)|^2 <= beta^2 |x - y|^2
                                    + alpha^2 |x - y|^(2 - 2p) L(x)^p
  non-critical              |grad L(x)|^2 >= theta_1^2 L(x)
  a minimum of zero         L(x*) = 0

In the constants beta is `smoothness`, mu / 2 (d of the paper) half the `convexity`, c
`dent`, alpha `roughness`, p `power` and theta_1 `slope`. Theorem 7.5, on the objective
in place of the input, is in `audit.leakage_theory`.
"""

import math
from dataclasses import replace

from fl_sketch.theory.assumptions import Assumption
from fl_sketch.theory.bound import Bound, Constants, Theorem

OBJECTIVE = tuple(
    Assumption("objective", text)
    for text in (
        "the objective is 0 at the input, and semi-strongly convex (Definition K.1)",
        "its squared gradient is at least theta_1^2 times it (Definition I.6)",
    )
)


def unique_input(constants: Constants) -> Bound:
    """Returns the bound on `|x - x*|^2` of Theorem K.2, at an x with L(x) = `start`.

    The theorem says that no other input has a gradient of zero: there L would be zero
    by the non-critical property, and by its proof L(x) >= mu/2 `|x - x*|^2`. So the
    bound is 2 L(x) / mu.
    """
    theorem = Theorem(
        "Song et al., Theorem K.2", ("convexity", "slope", "power", "start"), OBJECTIVE
    )
    c = theorem.require(constants)
    _require_power(theorem, c)
    return theorem.bound(c, 2 * c.start / c.convexity)


def input_descent(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on `|x - x*|^2` after T steps of descent, Theorem K.3.

    It is `(1 - xi eta / 2)^T |x0 - x*|^2`, for steps up to xi / (2 zeta), where::

      zeta = theta_1 / (theta_1 - alpha^(1/p)) (beta^2 + (alpha / theta_1^p)^(1/(1-p)))
      xi = mu - 2 c^(1/2p) zeta / theta_1^2 - 2 c^(1/(2-2p))

    theta_1 > alpha^(1/p), and xi > 0. No objective has an xi of 2 sqrt(zeta) or more,
    with which the bound would fall below zero. This is what the proof gives. The print
    has the distance for its square, gamma = 1 - xi eta / 2 for xi eta / 2, and (theta_1
    - alpha)^(1/p) for theta_1 - alpha^(1/p) in the condition xi > 0. For a target it
    has the largest step, which is the best by the bound.
    """
    theorem = Theorem(
        "Song et al., Theorem K.3",
        (
            *("smoothness", "convexity", "slope", "dent", "roughness", "power"),
            "distance",
        ),
        (
            *OBJECTIVE,
            Assumption("objective", "its gradient is semi-Lipschitz (Definition I.5)"),
            Assumption("plain", "descent takes plain steps"),
        ),
    )
    c = theorem.require(constants, target)
    _require_power(theorem, c)
    zeta, xi = _zeta_and_xi(theorem, c)
    longest = xi / (2 * zeta)
    if target is not None:
        rounds = math.log(target / c.distance) / math.log1p(-xi * longest / 2)
        c = replace(c, step=longest, rounds=max(1, math.ceil(rounds)))
    theorem.require_step(c, longest)
    return theorem.bound(c, (1 - xi * c.step / 2) ** c.rounds * c.distance)


def _require_power(theorem: Theorem, c: Constants) -> None:
    if c.power >= 1:
        theorem.refuse("power < 1", power=c.power)


def _zeta_and_xi(theorem: Theorem, c: Constants) -> tuple[float, float]:
    """Returns zeta and xi of Theorem K.3, or raises where its conditions fail."""
    p, rough = c.power, c.roughness ** (1 / c.power)
    if rough >= c.slope:
        theorem.refuse("roughness < slope^power", roughness=c.roughness)
    zeta = c.smoothness**2 + (c.roughness / c.slope**p) ** (1 / (1 - p))
    zeta *= c.slope / (c.slope - rough)
    dent = c.dent ** (1 / (2 * p)) * zeta / c.slope**2 + c.dent ** (1 / (2 - 2 * p))
    if c.convexity <= 2 * dent:
        theorem.refuse(f"convexity > {2 * dent:.6g}", convexity=c.convexity)
    # <grad L, x - x*> is between xi/2 and sqrt(zeta) times |x - x*|^2.
    most = 2 * (dent + math.sqrt(zeta))
    if c.convexity >= most:
        theorem.refuse(f"convexity < {most:.6g}", convexity=c.convexity)
    return zeta, c.convexity - 2 * dent
