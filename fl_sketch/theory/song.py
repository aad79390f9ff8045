"""Song et al.: iterative sketching, Theorems 5.1 to 5.4 and G.2, and appendix E.

Letters: L smoothness, mu strong convexity, eta and gamma the rates of clients and
server, K local steps, T rounds, and 1 + alpha with E‖R^T R x‖^2 <= (1 + alpha) ‖x‖^2.
The paper has no letters for three numbers: here `f0` is f(w0) - f(w*), `r2` the squared
distance ‖w0 - w*‖^2, and `sigma2` the mean over clients of ‖grad f_c(w*)‖^2.

The theorems of section E are about one local step. The mean of the clients' sketches is
then the sketch of the gradient of f, so that only f has to be smooth or convex, clients
may differ, and there is no drift: steps are up to 8 times longer. Their eta is
eta_global eta_local.
"""

import math

from fl_sketch.theory.conditions import at_most

# a of Table 1: alpha = a d / b.
EMBEDDING = {
    "gaussian": 3,
    "srht": 2,
    "ams": 2,
    "count_sketch": 3,
    "sparse_embedding": 2,
}


def alpha(operator, d, b) -> float:
    """Returns alpha of Theorem 4.2, by Table 1, for a sketch of b of d numbers.

    It is exactly d/b - 1 for uniform sampling, which is not in the table, and 0 for the
    identity. The exact values are in `tests/oracles/closed_forms.py` and are smaller.

    >>> alpha("srht", d=1000, b=100)
    20.0
    """
    if operator == "identity":
        return 0.0
    if operator == "uniform_sampling":
        return max(d / b - 1, 0.0)
    return EMBEDDING[operator] * d / b


def theorem_e1(eta, T, *, L, mu, f0, alpha) -> float:
    """Returns the bound on E f(w_T) - f(w*) of Theorem E.1: (1 - mu eta)^T f0.

    By the recurrence of its proof; the print has t rounds for the power t - 1.
    """
    longest = 1 / ((1 + alpha) * L)
    at_most(longest, eta=eta)
    at_most(L, mu=mu)
    return (1 - mu * min(eta, longest)) ** T * f0


def rounds_e1(target, *, L, mu, f0, alpha) -> tuple[float, int]:
    """Returns the longest step, which is the best by the bound, and the rounds.

    >>> rounds_e1(1e-6, L=1.0, mu=0.1, f0=0.5, alpha=12.0)[1]
    1700
    """
    eta, fraction = 1 / ((1 + alpha) * L), target / f0
    if mu * eta >= 1 or fraction >= 1:
        return eta, 1
    return eta, math.ceil(math.log(fraction) / math.log1p(-mu * eta))


def theorem_e2(eta, T, *, L, r2, alpha) -> float:
    """Returns the bound on E f(average) - f(w*) of Theorem E.2: r2 / (eta (T + 1)).

    For the average of w_0 to w_T, and half the steps of Theorem E.1.
    """
    at_most(1 / (2 * (1 + alpha) * L), eta=eta)
    return r2 / (eta * (T + 1))


def rounds_e2(target, *, L, r2, alpha) -> tuple[float, int]:
    """Returns the longest step and the rounds with which Theorem E.2 is the target."""
    eta = 1 / (2 * (1 + alpha) * L)
    return eta, max(1, math.ceil(r2 / (eta * target)) - 1)


def theorem_e3(eta, T, *, L, f0, alpha) -> float:
    """Returns the bound on the mean E‖grad f‖^2 of Theorem E.3: 2 f0 / (eta (T + 1)).

    For the mean over w_0 to w_T, and so for the smallest, of which the paper states it.
    """
    at_most(1 / ((1 + alpha) * L), eta=eta)
    return 2 * f0 / (eta * (T + 1))


def rounds_e3(target, *, L, f0, alpha) -> tuple[float, int]:
    """Returns the longest step and the rounds with which Theorem E.3 is the target."""
    eta = 1 / ((1 + alpha) * L)
    return eta, max(1, math.ceil(2 * f0 / (eta * target)) - 1)


def longest_step(*, L, K, alpha) -> float:
    """Returns the longest step of Theorems 5.1 and 5.3."""
    return 1 / (8 * (1 + alpha) * L * K)


def theorem_5_1(eta, T, *, L, mu, r2, sigma2, K, alpha) -> float:
    """Returns the bound on E f(w_T) - f(w*) of Theorem 5.1 (formally, F.9).

    L/2 r2 e^(-mu eta T) + 4 eta^2 L^2 K^3 sigma2 / mu.
    """
    at_most(longest_step(L=L, K=K, alpha=alpha), eta=eta)
    at_most(L, mu=mu)
    shrunk = r2 * math.exp(-mu * eta * T)
    return L / 2 * shrunk + 4 * eta**2 * L**2 * K**3 * sigma2 / mu


def corollary_5_2(target, *, L, mu, r2, sigma2, K, alpha) -> tuple[float, int]:
    """Returns the step and the rounds of Corollary 5.2 (by the proof of Theorem F.10).

    The longest step for which the drift, the second term of Theorem 5.1, is at most
    half the target, and the rounds after which the rest is. For a target not too small
    they grow like 1 + alpha ~ d/b, and the bits, rounds times b, do not grow as b
    shrinks.
    """
    eta = longest_step(L=L, K=K, alpha=alpha)
    if sigma2 > 0:
        eta = min(eta, math.sqrt(mu * target / (2 * K * sigma2)) / (2 * L * K))
    logarithm = max(math.log(L * r2 / target), 0)
    return eta, max(1, math.ceil(logarithm / (mu * eta)))


def theorem_5_3(eta, T, *, L, r2, sigma2, K, alpha) -> float:
    """Returns the bound on E f(average) - f(w*) of Theorem 5.3 (formally, F.7).

    4 r2 / (eta K T) + 32 eta^2 L K^2 sigma2, for the average of all clients' parameters
    before each of their K T steps.
    """
    at_most(longest_step(L=L, K=K, alpha=alpha), eta=eta)
    return 4 * r2 / (eta * K * T) + 32 * eta**2 * L * K**2 * sigma2


def corollary_5_4(target, *, L, r2, sigma2, K, alpha) -> tuple[float, int]:
    """Returns the step and the rounds of Corollary 5.4 (by the proof of Theorem F.8).

    Both terms of Theorem 5.3 are at most half the target.
    """
    eta = longest_step(L=L, K=K, alpha=alpha)
    if sigma2 > 0:
        eta = min(eta, math.sqrt(target / (L * sigma2)) / (8 * K))
    return eta, math.ceil(8 * r2 / (eta * K * target))


def theorem_g2(eta, T, *, L, G, f0, K, alpha, gamma=1.0) -> float:
    """Returns the bound on the mean E‖grad f‖^2 of Theorem G.2, corrected.

    f0 / ((T + 1) gamma eta K) + L K G^2 eta (1 + gamma (1 + alpha) / 2), for the mean
    over w_0 to w_T. Lemma G.1 asks for steps up to 1 / (2 L K). The print lacks the
    factor eta K of the descent and is false.
    """
    at_most(1 / (2 * L * K), eta=eta)
    noise = 1 + gamma * (1 + alpha) / 2
    return f0 / ((T + 1) * gamma * eta * K) + L * K * G**2 * eta * noise


def rounds_g2(target, *, L, G, f0, K, alpha, gamma=1.0) -> tuple[float, int]:
    """Returns a step and rounds: both terms of Theorem G.2 are at most half of it."""
    noise = 1 + gamma * (1 + alpha) / 2
    eta = min(1 / (2 * L * K), target / (2 * L * K * G**2 * noise))
    return eta, max(1, math.ceil(2 * f0 / (target * gamma * eta * K)) - 1)
