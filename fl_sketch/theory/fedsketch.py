"""Haddadpour et al.: FedSKETCH, Theorems 5 to 7, and FedSKETCHGATE, Theorem 3.

Theorem 2 states the orders of Theorems 5 to 7, whose constants are explicit. They hold
for any sketch that is read without bias, with E‖Q(x) - x‖^2 <= omega ‖x‖^2.

Letters: L smoothness, mu of the PL condition or of strong convexity, eta and gamma the
rates of clients and server, tau local steps, k clients, sigma the deviation of
stochastic gradients, R rounds, phi the weight of a penalty. Here `f0` is f(w0) - f* and
`r2` ‖w0 - w*‖^2.

Two steps of their proofs are corrected here (results/theory/details.md):

- Clients of a round share one sketch, as the server reads the mean of messages. The
  errors do not average out, so that omega / k + 1 becomes omega + 1.
- Later gradients of a client depend on the noise of earlier ones. The noise of an
  update is up to 1 + 4/3 x e^x times as large, for x = tau L eta.

In Theorem 2 the rounds for losses that are not convex are O(1 / target), with a step
that breaks condition (16): its equation (25) takes an upper bound for a lower one. Here
they are O((omega + 1) (1 / target + sigma^2 / (k tau target^2))), by Theorem 5. That is
O((omega + 1) / target) if local steps grow as 1 / (k target), as the paper has them.

Corollary 5, of FedAvg, is Theorem 5 with omega = 0 and gamma = 1. Corollary 1 calls
HEAPRIX unbiased. It is so if the rest has hashes of its own (`values="fresh"` of
`channels.heaprix`), which is the HEAPRIX of these theorems. With one set of hashes, the
default there, it is biased.
"""

import math

from fl_sketch.theory.conditions import at_least, at_most


def omega(variant, *, d, cols) -> float:
    """Returns omega of a count sketch of `cols` columns, at least 0.

    With mu^2 = e / cols it is mu^2 d for "privix" (Property 1) and mu^2 d - 1 for
    "heaprix" (Corollary 1), whose rest has fresh hashes.
    """
    return max(math.e * d / cols - (variant == "heaprix"), 0)


def rows(*, d, R, delta) -> int:
    """Returns the rows of a count sketch that theorems ask for: log(d R / delta)."""
    return math.ceil(math.log(d * R / delta))


def message_size(variant, *, d, cols, R, delta) -> int:
    """Returns the numbers of a message: cols log(d R / delta) by "privix".

    Those of "heaprix" are two sketches, and the values of cols heavy coordinates.
    """
    sketched = math.ceil(cols * math.log(d * R / delta))
    return 2 * sketched + cols if variant == "heaprix" else sketched


def longest_step(*, L, tau, gamma, omega) -> float:
    """Returns the longest step of condition (16), by equation (23).

    tau^2 L^2 eta^2 + (omega + 1) eta gamma L tau <= 1.
    """
    pull = gamma * (1 + omega)
    return 2 / (pull + math.hypot(pull, 2)) / (L * tau)


def noise(eta, *, L, k, tau, sigma, gamma, omega) -> float:
    """Returns the last two terms of (17), the first of them corrected.

    L eta gamma (omega + 1) sigma^2 / k, and L^2 eta^2 tau sigma^2.
    """
    crossed = _crossed(eta * L * tau) if tau > 1 else 1.0
    of_update = L * eta * gamma * (1 + omega) * crossed / k
    return (of_update + L**2 * eta**2 * tau) * sigma**2


def theorem_5(eta, R, *, f0, **numbers) -> float:
    """Returns the bound on the mean E‖grad f‖^2 of Theorem 5, not convex (17).

    2 f0 / (eta gamma tau R) + `noise`, for the mean over w_0 to w_(R - 1). The other
    `numbers` are those of `noise`.
    """
    _require_step(eta, numbers)
    return 2 * f0 / (_moved(eta, numbers) * R) + noise(eta, **numbers)


def rounds_5(target, *, f0, **numbers) -> tuple[float, int]:
    """Returns a step with which noise is at most half the target, and the rounds."""
    eta = _calm_step(target / 2, numbers)
    left = target - noise(eta, **numbers)
    return eta, math.ceil(2 * f0 / (_moved(eta, numbers) * left))


def theorem_6(eta, R, *, f0, mu, **numbers) -> float:
    """Returns the bound on E f(w_R) - f* of Theorem 6, for the PL condition.

    (1 - eta gamma mu tau)^R f0, and 1 / (2 mu) times the noise of Theorem 5.
    """
    _require_step(eta, numbers)
    at_most(numbers["L"], mu=mu)
    left = max(0.0, 1 - mu * _moved(eta, numbers))
    return left**R * f0 + noise(eta, **numbers) / (2 * mu)


def rounds_6(target, *, f0, mu, **numbers) -> tuple[float, int]:
    """Returns a step with which noise is at most half the target, and the rounds."""
    eta = _calm_step(mu * target, numbers)
    most = target - noise(eta, **numbers) / (2 * mu)
    return eta, _fewest(most, f0, mu * _moved(eta, numbers))


def penalty_and_step(*, L, k, tau, gamma, omega) -> tuple[float, float]:
    """Returns phi = 1 / sqrt(k tau) and eta of Theorem 7.

    Clients minimise f(w) + phi/2 ‖w - w0‖^2 by steps of eta = 1 / (2 (L + phi) gamma
    tau (omega + 1)). As printed, the smoothness lacks phi, and the exponent has m for
    k.
    """
    phi = 1 / math.sqrt(k * tau)
    return phi, 1 / (2 * (L + phi) * gamma * tau * (1 + omega))


def theorem_7(R, *, f0, r2, L, k, tau, sigma, gamma, omega) -> float:
    """Returns the bound on E f(w_R) - f* of Theorem 7, for convex losses.

    It is that of Theorem 6 for the loss with the penalty, and phi/2 r2; the paper has
    w0 = 0.
    """
    common = {"k": k, "tau": tau, "gamma": gamma, "omega": omega}
    phi, eta = penalty_and_step(L=L, **common)
    of_penalised = theorem_6(eta, R, f0=f0, mu=phi, L=L + phi, sigma=sigma, **common)
    return of_penalised + phi / 2 * r2


def rounds_7(target, *, f0, r2, L, k, sigma, gamma, omega) -> tuple[float, int, int]:
    """Returns the step, the local steps and the rounds: Theorem 7 is at most a target.

    All terms but the first fall as 1 / sqrt(tau), to half the target.
    """
    pull = gamma * (1 + omega)
    tail = _crossed(1 / (2 * pull)) / (4 * k) + 1 / (8 * pull**2)
    tail = sigma**2 * math.sqrt(k) * tail + r2 / (2 * math.sqrt(k))
    tau = max(1, math.ceil((2 * tail / target) ** 2))
    numbers = {"L": L, "k": k, "tau": tau, "gamma": gamma, "omega": omega}
    phi, eta = penalty_and_step(**numbers)
    tail = theorem_7(0, f0=f0, r2=r2, sigma=sigma, **numbers) - f0
    return eta, tau, _fewest(target - tail, f0, phi * _moved(eta, numbers))


def theorem_3(
    target, *, objective, L, k, gamma, omega, mu=math.nan
) -> tuple[float, int, int]:
    """Returns the step, the local steps and the rounds of FedSKETCHGATE's Theorem 3.

    It states orders for clients that differ, and the constants are one here. It prints
    mu^2 d in the nonconvex step of both variants, and gamma >= k. It follows from
    Theorem 9, which has omega + 1, and gamma >= sqrt(k tau) for the other objectives.
    Here both limits hold.

    Args:
      objective: the kind of loss: "nonconvex", "pl" or "convex".
    """
    at_least(k, gamma=gamma)
    logarithm, local = max(math.log(1 / target), 1), 1 / (k * target)
    if objective == "nonconvex":
        exact = (1 + omega) / target
    elif objective == "pl":
        at_most(L, mu=mu)
        exact = (1 + omega) * (L / mu) * logarithm
    else:
        exact, local = L * (1 + omega) / target * logarithm, local / target
    R, tau = math.ceil(exact), max(1, math.ceil(local))
    if objective == "nonconvex":
        eta = math.sqrt(k / (R * tau * (1 + omega))) / (L * gamma)
    else:
        at_least(math.sqrt(k * tau), gamma=gamma)
        eta = 1 / (2 * L * (1 + omega) * tau * gamma)
    return eta, tau, R


def _moved(eta, numbers) -> float:
    """Returns by how much a gradient moves the model in a round: eta gamma tau."""
    return eta * numbers["gamma"] * numbers["tau"]


def _crossed(x) -> float:
    """Returns by how much noise grows since later gradients depend on it."""
    return 1 + 4 / 3 * x * math.exp(x)


def _fewest(most, f0, shrinking) -> int:
    """Returns after how many rounds the first term of Theorem 6 is at most `most`."""
    if shrinking >= 1:
        return 1
    return max(1, math.ceil(math.log(most / f0) / math.log1p(-shrinking)))


def _calm_step(most, numbers) -> float:
    """Returns a step of condition (16) whose noise is at most `most`.

    Noise grows faster than the step, so a part of the longest has a smaller part.
    """
    longest = longest_step(**_of_condition_16(numbers))
    of_longest = noise(longest, **numbers)
    return longest * (min(1, most / of_longest) if of_longest else 1)


def _require_step(eta, numbers) -> None:
    at_most(longest_step(**_of_condition_16(numbers)), eta=eta)


def _of_condition_16(numbers) -> dict[str, float]:
    return {name: numbers[name] for name in ("L", "tau", "gamma", "omega")}
