"""FedSKETCH and FedSKETCHGATE, each with PRIVIX or HEAPRIX."""

import jax
import optax

from fl_sketch import channels
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm, Channel, Sketch
from fl_sketch.transforms import local

QUERIES = ("privix", "heaprix")


def fedsketch(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: optax.ScalarOrSchedule,
    server_rate: optax.ScalarOrSchedule,
    query: str = "privix",
    heavy: int = 0,
    values: str = "exact",
    fill: str = "",
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns FedSKETCH, for clients whose data are alike.

    Algorithm 5: a device takes tau SGD steps (lines 10-13) and sends the count sketch
    of x_0 - x_tau (line 14); the server averages the sketches (line 16). PRIVIX
    reads the mean sketch by medians over its rows (line 5). HEAPRIX has a second
    round of communication for the exact values of heavy coordinates (lines 18-20) and
    reads the rest from what remains (line 7). Everyone steps by gamma (line 8).

    Args:
      sketch: a count sketch of t rows.
      query: how the mean sketch is read, "privix" or "heaprix".
      heavy: the number m of HEAVYMIX, for HEAPRIX; 0 for as many as the sketch has
        columns.
      values: the second message of HEAPRIX: "exact" or "fresh", see
        `channels.heaprix`.
      fill: which of the m are not heavy: "random", as printed, or "top", the largest
        ones; empty: "random".

    Reference: Haddadpour et al., Algorithm 5.
    """
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=_uplink(sketch, query, heavy, values, fill or "random"),
        server=optax.sgd(server_rate),
    )


def fedsketchgate(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: jax.typing.ArrayLike,
    server_rate: optax.ScalarOrSchedule,
    gain: jax.typing.ArrayLike,
    query: str = "privix",
    heavy: int = 0,
    values: str = "exact",
    fill: str = "",
) -> Algorithm:
    """Returns FedSKETCHGATE: FedSKETCH with gradient tracking, for unlike data.

    Algorithm 6: as Algorithm 5, with steps along the gradient minus a control variate
    c_j (line 13). Every device of the round changes it by the gap between the common
    estimate and that of its own sketch, c_j -= gain (Phi - Phi_j) (lines 5 and 8). Phi
    is the mean of all Phi_j only for PRIVIX with means of rows, or with one row. The
    control variates then sum to zero, and clients with unlike data reach their common
    minimum. Otherwise they end near it (`experiments/tracking.py`).

    The paper prints the gain 1/tau. Its update already contains eta, so that without
    compression 1/(eta tau) is exact. The other arguments are those of `fedsketch`.

    Reference: Haddadpour et al., Algorithm 6.
    """
    return Algorithm(
        local=local.tracked_steps(loss, rate=client_rate, gain=gain),
        uplink=_uplink(sketch, query, heavy, values, fill or "random"),
        server=optax.sgd(server_rate),
    )


def _uplink(sketch: Sketch, query: str, heavy: int, values: str, fill: str) -> Channel:
    validate.one_of(QUERIES, query=query)
    if query == "privix":
        return channels.sketched(sketch, read="estimate")
    m = heavy or channels.columns(sketch)
    return channels.heaprix(sketch, m, values=values, fill=fill)
