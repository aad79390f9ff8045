"""Chen et al.: SAFL, by AMSGrad, on losses of a small intrinsic dimension.

The tails are those of the operator, in place of the 1/sqrt(b) that the paper writes
throughout, and the factors are those of the proofs: results/theory/details.md lists
where they differ from the print. Constants of one in the tails and in the martingale
stay as the paper has them, and the tails of fixed vectors for some that depend on the
sketch.

Letters: L, the largest eigenvalue of clients' Hessians; I, the intrinsic dimension; G,
a bound on full gradients; sigma, of sub-Gaussian noise on stochastic ones; C clients, K
local steps, T rounds; eta and kappa the rates of clients and server; b1, b2 and eps of
AMSGrad. Bounds hold but with a chance of order delta (the sketches), delta_g
(the noise) and exp(-nu^2). Here `f0` is f(w0) - f*, and `union` is `union_of` a sketch.
"""

# ruff: noqa: E741 - I is a letter of the paper

import math
from collections.abc import Callable

from fl_sketch.theory.conditions import at_least, at_most


def tail(operator, d, b, failure) -> float:
    """Returns how many times ‖v‖ ‖h‖ the product <R^T R v, h> is off at the most.

    log^1.5(d / failure) / sqrt(b) for SRHT, AMS and Gaussian matrices (Lemmas A.1 and
    A.2), and log(1 / failure) for the count sketch (A.3), whatever b is. Their
    probabilities are orders, Theta(failure), and their constants one, as printed.

    >>> round(tail("srht", d=1000, b=100, failure=0.01), 3), \
            round(tail("count_sketch", d=1000, b=100, failure=0.01), 3)
    (3.906, 4.605)

    Raises:
      ValueError: for an operator of which Property 3 has no tail.
    """
    if operator == "identity":
        return 0.0
    if operator == "count_sketch":
        return math.log(1 / failure)
    if operator in ("srht", "ams", "gaussian"):
        return math.log(d / failure) ** 1.5 / math.sqrt(b)
    msg = f"Property 3 of Chen et al. has no tail of operator={operator}."
    raise ValueError(msg)


def union_of(operator, d, b, delta) -> Callable[[float], float]:
    """Returns the tail of a number of products together, but for order delta."""
    return lambda products: tail(operator, d, b, delta / products)


def longest_gradient(*, G, sigma, C, K, T, delta_g) -> float:
    """Returns S, which no stochastic gradient of the run exceeds in length.

    G + sigma sqrt(log(2 C K T / delta_g)), by Assumption 3 for each client, local step
    and round. Together they fail with a chance of delta_g.
    """
    return G + sigma * math.sqrt(math.log(2 * C * K * T / delta_g))


def theorem_3_2(
    eta, T, *, L, I, G, sigma, f0, d, C, K, kappa, b1, eps, union, delta_g=1e-3, nu=1
) -> float:
    """Returns the bound on the mean ‖grad f‖^2 over rounds of Theorem 3.2.

    The inequality divided by kappa eta J_1 K T, for any constant step. G stands for the
    lengths of stochastic gradients in the proof as well, which are S here. It holds
    with probability 1 - O(delta) - O(exp(-nu^2)) - 2 delta_g.
    """
    S = longest_gradient(G=G, sigma=sigma, C=C, K=K, T=T, delta_g=delta_g)
    off, wide = union(C * K * T), union(C * K * T**2 * d)
    inverse_j1 = (1 + wide) * eta * K * S + eps
    smooth = kappa * eta**2 * L * K**2 * T / eps
    smooth *= G * S
    martingale = nu * kappa * eta * K * math.sqrt(T)
    martingale *= _drawn(off, G, S, sigma, T, delta_g) / eps
    curved = (8 * kappa * I * L + 2 * G) * K**2
    curved *= eta**2 * kappa * T * (1 + wide) ** 2
    curved *= S**2 / ((1 - b1) ** 2 * eps**2)
    total = f0 + smooth + martingale + curved
    return total * inverse_j1 / (kappa * eta * K * T)


def corollary_1(
    T, *, L, I, G, sigma, f0, d, C, K, kappa, b1, eps, union, delta_g=1e-3, nu=1
) -> float:
    """Returns the bound of Corollary 1: Theorem 3.2 with the step 1 / (K sqrt(T)).

    With 1 / J_1 <= (2 + tail) eps, for T >= S^2 / eps^2.
    """
    S = longest_gradient(G=G, sigma=sigma, C=C, K=K, T=T, delta_g=delta_g)
    at_least((S / eps) ** 2, T=T)
    off, wide = union(C * K * T), union(C * K * T**2 * d)
    curved = 8 * kappa * I * L + 2 * G
    curved *= (1 + wide) ** 2 * S**2
    terms = (
        f0 * eps / kappa,
        L * G * S,
        nu * _drawn(off, G, S, sigma, T, delta_g),
        curved / ((1 - b1) ** 2 * eps),
    )
    return (2 + wide) * sum(terms) / math.sqrt(T)


def corollary_2(
    T, J_3, *, L, I, G, sigma, f0, d, C, K, kappa, b1, eps, union, delta_g=1e-3, nu=1
) -> float:
    """Returns the bound of Corollary 2, near the start, of order 1 / T.

    With the step 1 / (K sqrt(T)), for few rounds and a long message: all tails are at
    most 1, which is b >= log^3(C K d^2 T^2 / delta) but for the count sketch, whose
    tail is never so short; and 2 S + eps sqrt(T) <= J_3, so that kappa eta J_1 K >=
    kappa / J_3.
    """
    S = longest_gradient(G=G, sigma=sigma, C=C, K=K, T=T, delta_g=delta_g)
    at_most(1, tail=union(C * K * T**2 * d))
    at_least(2 * S, J_3=J_3)
    at_most(((J_3 - 2 * S) / eps) ** 2, T=T)
    curved = 8 * kappa * I * L + 2 * G
    terms = (
        f0 / kappa,
        L * G * S / eps,
        nu * _drawn(1, G, S, sigma, T, delta_g) / eps,
        4 * curved * S**2 / ((1 - b1) * eps) ** 2,
    )
    return J_3 * sum(terms) / T


def decaying_step(t, *, K, b1) -> float:
    """Returns eta of Theorem B.3 in round t, from 1 on: 1 / (K sqrt(t + T_0)).

    T_0 = ceil(1 / (1 - b1^2)).
    """
    return 1 / (K * math.sqrt(t + math.ceil(1 / (1 - b1**2))))


def theorem_b3(
    T, *, L, I, G, sigma, f0, d, C, K, kappa, b1, eps, union, delta_g=1e-3, nu=1
) -> float:
    """Returns the bound on the mean ‖grad f‖^2 of Theorem B.3, with `decaying_step`.

    The theorem bounds a sum over rounds with weights kappa eta_t K J_1, which fall; the
    last of them, the smallest, is used for all. Of order log(T) / sqrt(T).
    """
    S = longest_gradient(G=G, sigma=sigma, C=C, K=K, T=T, delta_g=delta_g)
    off, wide = union(C * K * T), union(C * K * T**2 * d)
    T_0 = math.ceil(1 / (1 - b1**2))
    energy = math.log1p(T / T_0)  # of all steps, times K
    J = (1 - b1) / (1 - b1 * math.sqrt((T_0 + 1) / T_0))  # of Lemma B.4
    inverse_j1 = (1 + wide) * S / math.sqrt(1 + T_0) + eps
    smooth = kappa * L * G * S * energy / eps
    martingale = nu * kappa * math.sqrt(energy)
    martingale *= _drawn(off, G, S, sigma, T, delta_g) / eps
    curved = 8 * kappa * J**2 * I * L
    curved += 2 * J * G
    curved *= kappa * energy * (1 + wide) ** 2
    curved *= S**2 / ((1 - b1) ** 2 * eps**2)
    total = f0 + smooth + martingale + curved
    return total * inverse_j1 * math.sqrt(T + T_0) / (kappa * T)


def theorem_4_4(
    T, eta=None, *, L, I, f0, d, C, K, Delta, b1, b2, eps, union, delta_g=1e-3, nu=1
) -> tuple[float, float, float]:
    """Returns the step, G, and the bound on the mean ‖grad f‖^2, of Theorem 4.4.

    The server's rate is kappa = 1 / sqrt(G), and the step the largest unless it is
    given. No ‖grad f‖^2 exceeds G, which is the smallest that closes the chain of
    inequalities of the proof, a root of a quadratic equation in sqrt(G), with which
    losses stay below G / (2 L). No bound on gradients is assumed. Delta is what noise
    exceeds with probability exp(-Delta^2 / sigma^2). It holds with probability 1 -
    O(delta) - delta_g - T exp(-Omega(nu^2)) - T C K exp(-Delta^2 / sigma^2). The
    paper's delta_c, of one round, is delta_g / T.
    """
    grown, root = 1 + union(C * K * T * d), math.sqrt(L)
    # Terms with a change of preconditioner take half of G / (2 L) at most.
    changing = 8 * root * K * (1 - b2) ** 0.25 / math.sqrt(1 - b1)
    limits = [
        eps / (6 * root * grown),
        eps / (changing * grown),
        math.sqrt(T) / (2 * L * math.sqrt(K)),
    ]
    if b1:
        limits.append(eps * (1 - b1) / (4 * b1 * L * grown))
    eta_0 = min(limits)  # eta sqrt(T)
    if eta is not None:
        at_most(eta_0 / math.sqrt(T), eta=eta)
        eta_0 = eta * math.sqrt(T)
    off = union(C * K * T)
    moved, shrunk = eta_0 * K / eps, 1 - b1
    # f(w_T) <= constant + 2 rooted sqrt(G) + linear G, which is to be G / (2 L).
    linear = 16 * math.sqrt(1 - b2) * (grown * moved) ** 2 / shrunk
    rooted = 2 * math.sqrt(2) * moved * (eta_0 * K * L + nu * off)
    curved = (32 + 8 * (1 + b1) ** 2) * I
    curved += 4 * b1**2 * (1 + I) / T
    constant = 2 * f0 + 2 * nu * moved * Delta
    constant += L * (grown * moved / shrunk) ** 2 * curved
    left = 1 / (2 * L) - linear
    chain = (rooted + math.sqrt(rooted**2 + left * constant)) / left
    noisy = 2 * Delta * (1 + math.sqrt(2 * math.log(2 * C * K * T / delta_g)))
    G = max(chain**2, noisy**2 / 2)
    # Sketched gradients: the bound on those of clients, grown by the tail.
    wide, eta = 1 + union(C * K * T**2 * d), eta_0 / math.sqrt(T)
    inverse_j1 = wide * eta * K * (math.sqrt(2 * G) + noisy) + eps
    return eta, G, G**1.5 * inverse_j1 / (4 * L * eta_0 * K * math.sqrt(T))


def _drawn(off, G, S, sigma, T, delta_g) -> float:
    """Returns a round's term of the martingale, if inner products are `off`."""
    return G * (off * S + sigma * math.sqrt(math.log(2 * T / delta_g)))
