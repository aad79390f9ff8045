"""What several theorems assume.

`fl_sketch.experiments.assumptions` decides by `Assumption.about` whether a config meets
one.
"""

import math
from typing import NamedTuple


class Assumption(NamedTuple):
    """One thing that a theorem assumes.

    Attributes:
      about: the name of what it is about.
      text: a sentence.
      value: the number that a run is compared with; NaN: there is none.
    """

    about: str
    text: str
    value: float = math.nan


SMOOTH = Assumption("smooth", "every client's loss is L-smooth")
CONVEX = Assumption("convex", "every client's loss is convex")
BOUNDED_BELOW = Assumption("bounded_below", "the loss is bounded below")
FULL_GRADIENTS = Assumption("full_gradients", "clients take full gradients")
PLAIN = Assumption("plain", "clients take plain steps of one size")
BARE = Assumption("bare", "messages are neither clipped nor noised")
EVERYONE = Assumption("everyone", "all clients take part in every round")


def server_rate(rate: float) -> Assumption:
    """Returns the assumption on the rate of a server that takes plain steps."""
    return Assumption(
        "server_rate", f"the server takes plain steps of rate {rate:g}", rate
    )


def step_most(longest: float, why: str = "") -> Assumption:
    """Returns the assumption on the step size of clients."""
    text = f"the client step size is at most {longest:.4g}{why}"
    return Assumption("step_most", text, longest)


def step_is(step: float, formula: str) -> Assumption:
    """Returns the assumption of a theorem that has one step size."""
    return Assumption("step", f"the client step size is {step:.4g}: {formula}", step)
