"""Das et al.: DP-FedAvg with clipping (Theorems 2, 3) and with normalisation (4).

Losses are convex and L-smooth. A round ends with u_i, the sum of E gradients of a
client, clipped to C or scaled to the length C. The step is eta = rho / (2 alpha L), the
rounds are 2 alpha gamma / (C rho^2), and gamma = L ‖w0 - w*‖ makes the first term of a
bound least. More rounds cannot lower that term: noise grows with them. Theorems 5 and 6
of the appendix are Theorems 2 and 4 with alpha written as rounds.

Letters: rho = (z / r) sqrt(d / T) for noise z C on the sum of r clients in each of T
rounds, which is sqrt(q d log(1 / delta)) / (n epsilon) in the paper; Delta, the largest
f_i(w*) - min f_i of a client, for which the paper has their mean; s = rho E / alpha.
Here `r2` is ‖w0 - w*‖^2.

Equation 23 of the proofs, ‖mean of a cohort‖^2 <= mean of ‖.‖^2, needs a sum that is
divided by the size of its cohort: cohorts of a fixed size, or everyone. The paper's are
Poisson's, and its sum is divided by the mean size r. For equal updates of n clients the
left side is then 1 + 1/r - 1/n times the right one.
"""

import math

from fl_sketch.theory.conditions import at_least, at_most

OF_GRADIENT = 3 * math.sqrt(7 / 32) / 16  # of C / (E L) |grad f_i(w)| in Theorem 3


def noise_multiplier(*, epsilon, delta, rounds, n, r, q=1.0) -> float:
    """Returns z by Theorem 1, with a constant q that the paper does not state.

    Noise of sigma^2 = q T C^2 log(1/delta) / (n epsilon)^2 on the mean over r of n
    clients, in each of T rounds, is z = (r / n) sqrt(q T log(1/delta)) / epsilon on the
    sum. It holds only for some q and small epsilon, so it is no guarantee.
    """
    return r / n * math.sqrt(q * rounds * math.log(1 / delta)) / epsilon


def least_threshold(*, L, E, Delta) -> float:
    """Returns the smallest C that Theorems 2 to 4 admit: 4 E sqrt(L Delta)."""
    return 4 * E * math.sqrt(L * Delta)


def theorem_2(alpha, gamma, *, rho, L, E, C, Delta, r2) -> float:
    """Returns the right side of Theorem 2 (equation 6), A + B.

    rho (C/E (L r2 / gamma + gamma / L) + 3 E Delta / (2 alpha)). Its left side is a
    mean over clients and rounds. A client that is not clipped counts (2 - s - s^2)
    (f_i(w) - f_i(w*)), and one that is counts 3 C ‖u_i‖ / (8 L E^2). In B every client
    counts as not clipped, and with the largest Delta_i, which is its most.
    """
    start = _start(gamma, L, E, C, r2)
    _require(alpha, rho, L, E, C, Delta)
    return rho * (start + 3 * E * Delta / 2 / alpha)


def theorem_3(alpha, gamma, **numbers) -> float:
    """Returns the right side of Theorem 3 (equation 7), with constants of its proof.

    Its left side is a mean over clients and rounds of the smaller of f_i(w) - f_i(w*)
    and 0.0877 C / (E L) ‖grad f_i(w)‖. Theorem 2 is divided by 2 - s - s^2, which is
    5/4 to 2, and ‖u_i‖ is at least sqrt(7/32) E ‖grad f_i(w)‖ (equation 65). The
    arguments are those of `theorem_2`.
    """
    return 4 / 5 * theorem_2(alpha, gamma, **numbers)


def theorem_4(alpha, gamma, *, rho, L, E, C, Delta, r2) -> float:
    """Returns the right side of Theorem 4 (equation 14), without one term.

    rho (C/E (L r2 / gamma + gamma / L) + C^2 / (2 L E alpha)). A client with ‖u_i‖ > C
    counts as in Theorem 2. Others count C / ‖u_i‖ times (2 - s^2) (f_i(w) - f_i(w*)),
    and on the right C / ‖u_i‖ s^2 Delta_i. Before a run nothing bounds 1 / ‖u_i‖, so
    this term counts on the left here: together they are C / ‖u_i‖ times
    2 (f_i(w) - f_i(w*)) - s^2 (f_i(w) - min f_i).
    """
    start = _start(gamma, L, E, C, r2)
    _require(alpha, rho, L, E, C, Delta)
    return rho * (start + C**2 / (2 * L * E) / alpha)


def rounds_for(target, theorem, *, rho, L, E, C, Delta, r2) -> tuple[float, int]:
    """Returns alpha and the rounds with which Theorem 2, 3 or 4 is at most a target.

    alpha is the smallest that is enough, or what makes the rounds a whole number.

    Raises:
      ValueError: if noise alone is above the target, after any number of rounds.
    """
    numbers = {"rho": rho, "L": L, "E": E, "C": C, "Delta": Delta, "r2": r2}
    gamma, least = L * math.sqrt(r2), max(1.0, 2 * rho * E)
    noise = theorem(math.inf, gamma, **numbers)
    if noise >= target:
        msg = f"Noise alone is {noise:.4g}, and the target {target:.4g} is no more."
        raise ValueError(msg)
    falling = least * (theorem(least, gamma, **numbers) - noise)  # as 1 / alpha
    alpha = max(least, falling / (target - noise))
    exact = 2 * alpha * gamma / (C * rho**2)
    return alpha * math.ceil(exact) / exact, math.ceil(exact)


def proposition_1(*, rho, L, lambda_, G, E, Delta, r2) -> tuple[float, int, float]:
    """Returns the C that clips nothing, the rounds, and the bound on E f(w) - f(w*).

    Proposition 1: C = G E (1 - 11 (E - 1) rho / 64 (lambda / L)^2), alpha is 1, and so
    E <= 1 / (2 rho). The bound is equation 8, 4/5 of Theorem 2, which equation 11
    rounds up. Gradients are at most G long where clients take steps, and a step of eta
    changes them by eta lambda of their length or more (Assumption 1). The paper has
    that for all w, which no loss meets (results/theory/details.md).
    """
    at_most(L, lambda_=lambda_)
    at_most(1 / (2 * E), rho=rho)
    C = G * E * (1 - 11 * (E - 1) * rho / 64 * (lambda_ / L) ** 2)
    exact = 2 * L * math.sqrt(r2) / (C * rho**2)
    gamma = L * math.sqrt(r2) * math.ceil(exact) / exact
    numbers = {"rho": rho, "L": L, "E": E, "C": C, "Delta": Delta, "r2": r2}
    return C, math.ceil(exact), 4 / 5 * theorem_2(1, gamma, **numbers)


def _start(gamma, L, E, C, r2) -> float:
    return (L * r2 / gamma + gamma / L) * C / E


def _require(alpha, rho, L, E, C, Delta) -> None:
    at_least(max(1, 2 * rho * E), alpha=alpha)
    at_least(least_threshold(L=L, E=E, Delta=Delta), C=C)
