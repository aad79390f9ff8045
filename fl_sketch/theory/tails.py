"""How far inner products of de-sketched vectors stray: Chen et al., Property 3.

Their Lemmas A.1 to A.3 say it for the operators that they name: how likely it is that
`|<R^T R v, h> - <v, h>|` exceeds so many times `|v| |h|`. Property 3, of which the text
says that it holds for the count sketch too, is the tail of A.1 and A.2 alone: that of
A.3 does not fall with b. For probabilities below 1/b none could: where v = h is two
coordinates, these meet in one bucket with probability 1/b, and then the inner product
is off by all of `|v| |h|`. For larger ones it could: by Chebyshev's inequality it is
off by more than sqrt(2 / (b delta)) of `|v| |h|` with a probability of delta at most.
"""

import math

from fl_sketch.core import validate
from fl_sketch.theory.bound import Unreachable, positive

LEMMAS = {
    "srht": "A.1",
    "ams": "A.1",
    "gaussian": "A.2",
    "count_sketch": "A.3",
    "identity": "",
}
WITHOUT = ("sparse_embedding", "uniform_sampling")


def tail(operator: str, *, d: int, b: int, failure: float) -> float:
    """Returns how many times `|v| |h|` an inner product is off at the most.

    `log^1.5(d / failure) / sqrt(b)` for SRHT, AMS and Gaussian matrices, and
    `log(1 / failure)` for the count sketch, whatever b. Their probabilities are orders,
    Theta(failure), and their constants one, as the paper prints them.

    >>> round(tail("srht", d=1000, b=100, failure=0.01), 3), \
            round(tail("count_sketch", d=1000, b=100, failure=0.01), 3)
    (3.906, 4.605)

    Args:
      operator: a name as configs have it.
      d: the number of parameters.
      b: the number of numbers in a message.
      failure: the probability, up to a constant, that it is off by more.

    Raises:
      Unreachable: for an operator of which the paper gives no tail.
      ValueError: for a name that there is not.
    """
    validate.one_of((*LEMMAS, *WITHOUT), operator=operator)
    if operator in WITHOUT:
        known = ", ".join(LEMMAS)
        msg = (
            "Chen et al. give the tail of inner products (Property 3) for operator in "
            f"{known}, got operator={operator}."
        )
        raise Unreachable(msg)
    positive(failure=failure)
    validate.in_range(0, 1, failure=failure)
    if operator == "identity":
        return 0.0
    if operator == "count_sketch":
        return math.log(1 / failure)
    return math.log(d / failure) ** 1.5 / math.sqrt(b)
