"""Chen et al.: SAFL on losses of a small intrinsic dimension.

The tails are those of the operator, in place of the 1/sqrt(b) that the paper writes
throughout, and the factors are those of the proofs: results/theory/details.md lists
where they differ from the print. Constants of one in the tails and in the martingale
stay as the paper has them, and the tails of fixed vectors for some that depend on the
sketch.
"""

import math
from dataclasses import replace

from fl_sketch.core import validate
from fl_sketch.theory.assumptions import (
    BARE,
    EVERYONE,
    PLAIN,
    Assumption,
    step_is,
    step_most,
)
from fl_sketch.theory.bound import Bound, Constants, Theorem, Unreachable

MOST = 1e100  # rounds: their squares are floats
UNASSUMING = (
    *("smoothness", "intrinsic", "start", "clients", "steps", "d", "b"),
    *("b1", "eps", "delta", "delta_g", "nu"),
)
NEEDS = (*UNASSUMING, "gradient", "noise", "server_rate")
UNBOUNDED = (
    Assumption("amsgrad", "AMSGrad as printed at the server, at a constant rate"),
    EVERYONE,
    PLAIN,
    BARE,
    Assumption(
        "subgaussian", "stochastic gradients are sigma-sub-Gaussian (Assumption 3)"
    ),
    Assumption(
        "intrinsic",
        "clients' Hessians have eigenvalues of at most L, the loss has the intrinsic "
        "dimension I (Assumption 4)",
    ),
)
ASSUMPTIONS = (
    Assumption("gradient", "full gradients are at most G long (Assumptions 1 and 2)"),
    *UNBOUNDED,
)
AT_STEP = "1 / (K sqrt T)"
WITH_TAIL = ("srht", "ams", "gaussian", "count_sketch", "identity")
WITHOUT_TAIL = ("sparse_embedding", "uniform_sampling")


def tail(operator: str, *, d: int, b: int, failure: float) -> float:
    """Returns how many times `|v| |h|` the product <R^T R v, h> is off at the most.

    `log^1.5(d / failure) / sqrt(b)` for SRHT, AMS and Gaussian matrices (Lemmas A.1 and
    A.2), and `log(1 / failure)` for the count sketch (A.3). Their probabilities are
    orders, Theta(failure), and their constants one, as the paper prints them.

    >>> round(tail("srht", d=1000, b=100, failure=0.01), 3), \
            round(tail("count_sketch", d=1000, b=100, failure=0.01), 3)
    (3.906, 4.605)

    Args:
      operator: the name of an operator, as configs have it.
      d: the number of parameters.
      b: the number of numbers in a message.
      failure: the probability, up to a constant, that it is off by more.
    """
    validate.one_of((*WITH_TAIL, *WITHOUT_TAIL), operator=operator)
    if operator in WITHOUT_TAIL:
        msg = (
            f"Expected operator in {', '.join(WITH_TAIL)} (Chen et al., Property 3), "
            f"got operator={operator}."
        )
        raise Unreachable(msg)
    if not 0 < failure <= 1:
        msg = f"Expected 0 < failure <= 1, got failure={failure}."
        raise ValueError(msg)
    if operator == "identity":
        return 0.0
    validate.at_least_one(d=d, b=b)
    if operator == "count_sketch":
        return math.log(1 / failure)
    return math.log(d / failure) ** 1.5 / math.sqrt(b)


def joint_tail(
    constants: Constants, times: float, *, coordinates: bool = False
) -> float:
    """Returns the tail of many inner products, which hold together with 1 - delta.

    There are so many `times` for each client and local step and, with `coordinates`,
    for each parameter.
    """
    c = constants
    events = c.clients * c.steps * times * (c.d if coordinates else 1)
    return tail(c.operator, d=c.d, b=c.b, failure=c.delta / events)


def longest_gradient(constants: Constants) -> float:
    """Returns S, which no stochastic gradient of the run exceeds in length.

    It is G + sigma sqrt(log(2 C K T / delta_g)), by Assumption 3 for each client, local
    step and round. Together they fail with a chance of delta_g.
    """
    c = constants
    draws = 2 * c.clients * c.steps * c.rounds / c.delta_g
    return c.gradient + c.noise * math.sqrt(math.log(draws))


def adaptive(constants: Constants) -> Bound:
    """Returns the bound on the mean `|grad f|^2` over rounds of Theorem 3.2.

    The inequality divided by kappa eta J_1 K T, for any constant step. G stands for the
    lengths of stochastic gradients in the proof as well, which are `longest_gradient`
    here. It holds with probability 1 - O(delta) - O(exp(-nu^2)) - 2 delta_g.
    """
    needs = *NEEDS, "step", "rounds"
    theorem = Theorem("Chen et al., Theorem 3.2", needs, ASSUMPTIONS)
    c = theorem.require(constants)
    k, step, longest = c.steps, c.step, longest_gradient(c)
    widest = joint_tail(c, c.rounds**2, coordinates=True)
    inverse_j1 = (1 + widest) * step * k * longest + c.eps
    smooth = c.server_rate * step**2 * c.smoothness * k**2 * c.rounds / c.eps
    smooth *= c.gradient * longest
    drawn = _drawn(c, joint_tail(c, c.rounds))
    martingale = c.nu * c.server_rate * step * k * math.sqrt(c.rounds) * drawn / c.eps
    curved = (8 * c.server_rate * c.intrinsic * c.smoothness + 2 * c.gradient) * k**2
    curved *= step**2 * c.server_rate * c.rounds * (1 + widest) ** 2
    curved *= longest**2 / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.start + smooth + martingale + curved
    error = total * inverse_j1 / (c.server_rate * step * k * c.rounds)
    return theorem.bound(c, error)


def adaptive_long_run(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound of Corollary 1, with the step 1 / (K sqrt T).

    Theorem 3.2 there, with `1 / J_1 <= (2 + tail) eps`, for T >= S^2 / eps^2 and the S
    of `longest_gradient`; for a target the fewest rounds, by bisection from there on.
    """
    name = "Chen et al., Theorem 3.2 and Corollary 1"
    theorem = Theorem(name, NEEDS, ASSUMPTIONS)
    c = theorem.require(constants, target)
    if target is not None:
        c = replace(c, rounds=_fewest_rounds(theorem, c, target))
    least = max(1, _least_rounds(c))
    theorem.at_least(least, rounds=c.rounds)
    step = 1 / (c.steps * math.sqrt(c.rounds))
    text = f"T >= S^2 / eps^2 = {least:.4g} rounds; a larger server.eps asks for fewer"
    many = Assumption("rounds", text, least)
    one = step_is(step, f"{AT_STEP} for the T = {c.rounds:.4g} rounds of this bound")
    return theorem.bound(c, _long_run_error(c), one, many, step=step)


def _least_rounds(constants: Constants) -> float:
    """Returns S^2 / eps^2 for the rounds of the constants, or no more than MOST^2."""
    c = replace(constants, rounds=max(1, constants.rounds))
    return min(longest_gradient(c) / c.eps, MOST) ** 2


def _long_run_error(constants: Constants) -> float:
    c, longest = constants, longest_gradient(constants)
    widest = joint_tail(c, c.rounds**2, coordinates=True)
    curved = 8 * c.server_rate * c.intrinsic * c.smoothness + 2 * c.gradient
    curved *= (1 + widest) ** 2 * longest**2
    terms = (
        c.start * c.eps / c.server_rate,
        c.smoothness * c.gradient * longest,
        c.nu * _drawn(c, joint_tail(c, c.rounds)),
        curved / ((1 - c.b1) ** 2 * c.eps),
    )
    return (2 + widest) * sum(terms) / math.sqrt(c.rounds)


def _fewest_rounds(theorem: Theorem, constants: Constants, target: float) -> int:
    """Returns the fewest rounds, at least S^2 / eps^2, with an error <= target."""

    def enough(rounds):
        c = replace(constants, rounds=rounds)
        return rounds >= _least_rounds(c) and _long_run_error(c) <= target

    low = max(1, math.ceil(_least_rounds(replace(constants, rounds=1)))) - 1
    high = low + 1
    while high > MOST or not enough(high):
        if high > MOST:
            msg = (
                f"{theorem.name} takes more than {MOST:g} rounds to target={target:g}."
            )
            raise Unreachable(msg)
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def adaptive_early(constants: Constants, *, ceiling: float) -> Bound:
    """Returns the bound of Corollary 2, near the start, of order 1 / T.

    With the step 1 / (K sqrt T), for few rounds and a long message: all tails are at
    most 1, which is `b >= log^3(C K d^2 T^2 / delta)` but for the count sketch, whose
    tail is never so short; and `2 S + eps sqrt T <= J_3`, the `ceiling`, for the S of
    `longest_gradient`, so that kappa eta J_1 K >= kappa / J_3.
    """
    theorem = Theorem("Chen et al., Corollary 2", (*NEEDS, "rounds"), ASSUMPTIONS)
    c = theorem.require(constants)
    longest = longest_gradient(c)
    theorem.at_most(1, tail=joint_tail(c, c.rounds**2, coordinates=True))
    theorem.at_least(2 * longest, ceiling=ceiling)
    theorem.at_most(((ceiling - 2 * longest) / c.eps) ** 2, rounds=c.rounds)
    curved = 8 * c.server_rate * c.intrinsic * c.smoothness + 2 * c.gradient
    terms = (
        c.start / c.server_rate,
        c.smoothness * c.gradient * longest / c.eps,
        c.nu * _drawn(c, 1) / c.eps,
        4 * curved * longest**2 / ((1 - c.b1) * c.eps) ** 2,
    )
    step = 1 / (c.steps * math.sqrt(c.rounds))
    error = ceiling * sum(terms) / c.rounds
    return theorem.bound(c, error, step_is(step, AT_STEP), step=step)


def _drawn(constants: Constants, off: float) -> float:
    """Returns what a round adds to the martingale, if inner products are `off`."""
    c = constants
    noise = c.noise * math.sqrt(math.log(2 * c.rounds / c.delta_g))
    return c.gradient * (off * longest_gradient(c) + noise)


def adaptive_decaying_step(constants: Constants, round: int) -> float:
    """Returns the clients' step of Theorem B.3, from the round t = 1 on.

    It is 1 / (K sqrt(t + T_0)), for T_0 = ceil(1 / (1 - beta_1^2)).
    """
    delay = math.ceil(1 / (1 - constants.b1**2))
    return 1 / (constants.steps * math.sqrt(round + delay))


def adaptive_decaying(constants: Constants) -> Bound:
    """Returns the bound on the mean `|grad f|^2` over rounds of Theorem B.3.

    With `adaptive_decaying_step`; the step of the `Bound` is that of the last round.
    The theorem bounds a sum over rounds with weights kappa eta_t K J_1, which fall; the
    last of them, the smallest, is used for all. Of order log(T) / sqrt(T).
    """
    theorem = Theorem("Chen et al., Theorem B.3", (*NEEDS, "rounds"), ASSUMPTIONS)
    c = theorem.require(constants)
    longest = longest_gradient(c)
    delay = math.ceil(1 / (1 - c.b1**2))  # T_0
    energy = math.log1p(c.rounds / delay)  # of all steps, times K
    lag = (1 - c.b1) / (1 - c.b1 * math.sqrt((delay + 1) / delay))
    widest = joint_tail(c, c.rounds**2, coordinates=True)
    inverse_j1 = (1 + widest) * longest / math.sqrt(1 + delay) + c.eps
    smooth = c.server_rate * c.smoothness * c.gradient * longest * energy / c.eps
    drawn = _drawn(c, joint_tail(c, c.rounds))
    martingale = c.nu * c.server_rate * math.sqrt(energy) * drawn / c.eps
    curved = 8 * c.server_rate * lag**2 * c.intrinsic * c.smoothness
    curved += 2 * lag * c.gradient
    curved *= c.server_rate * energy * (1 + widest) ** 2
    curved *= longest**2 / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.start + smooth + martingale + curved
    error = (
        total * inverse_j1 * math.sqrt(c.rounds + delay) / (c.server_rate * c.rounds)
    )
    return theorem.bound(c, error, step=adaptive_decaying_step(c, c.rounds))


def adaptive_confined(constants: Constants) -> Bound:
    """Returns the bound of Theorem 4.4 for a number of rounds.

    The server's rate is kappa = 1 / sqrt(G), and the step that of the constants or, if
    it is unknown, the largest. G is `Bound.largest`, which no `|grad f|^2` exceeds; the
    error is their mean over rounds. It holds with probability 1 - O(delta) - delta_g -
    T exp(-Omega(nu^2)) - T C K exp(-Delta^2 / sigma^2). The paper's delta_c, of one
    round, is `delta_g` / T.

    G is the smallest that closes the chain of inequalities of the proof, a root of a
    quadratic equation in sqrt(G), with which losses stay below G / (2 L). No bound on
    gradients is assumed.
    """
    needs = *UNASSUMING, "deviation", "b2", "rounds"
    theorem = Theorem("Chen et al., Theorem 4.4", needs, UNBOUNDED)
    c, k, length = theorem.require(constants), constants.steps, constants.smoothness
    first = longest = _largest(c)
    if not math.isnan(c.step):
        first = c.step * math.sqrt(c.rounds)
        theorem.at_most(longest / math.sqrt(c.rounds), step=c.step)
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
    events = 2 * c.clients * k * c.rounds / c.delta_g
    noisy = 2 * c.deviation * (1 + math.sqrt(2 * math.log(events)))
    square = max(chain**2, noisy**2 / 2)
    # Sketched gradients: the bound on those of clients, grown by the tail.
    widest = 1 + joint_tail(c, c.rounds**2, coordinates=True)
    step = first / math.sqrt(c.rounds)
    reach = widest * step * k * (math.sqrt(2 * square) + noisy) + c.eps
    error = square**1.5 * reach / (4 * length * first * k * math.sqrt(c.rounds))
    assumed = step_most(longest / math.sqrt(c.rounds))
    run = {"step": step, "server_rate": 1 / math.sqrt(square)}
    bound = theorem.bound(c, error, assumed, **run)
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
