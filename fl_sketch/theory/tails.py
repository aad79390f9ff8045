"""How far inner products of de-sketched vectors stray: Chen et al., Property 3."""

import math

from fl_sketch.core import validate
from fl_sketch.theory.bound import Unreachable
from fl_sketch.theory.constants import Constants

WITH = ("srht", "ams", "gaussian", "count_sketch", "identity")
WITHOUT = ("sparse_embedding", "uniform_sampling")


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
    validate.one_of((*WITH, *WITHOUT), operator=operator)
    if operator in WITHOUT:
        msg = (
            f"Expected operator in {', '.join(WITH)}, of which Chen et al. give a tail "
            f"(Property 3), got operator={operator}."
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
    """Returns the tail of many inner products, which all hold but for a chance delta.

    There are so many `times` for each client and local step and, with `coordinates`,
    for each parameter.
    """
    c = constants
    events = c.clients * c.steps * times * (c.d if coordinates else 1)
    return tail(c.operator, d=c.d, b=c.b, failure=c.delta / events)
