"""SketchedSGD: error feedback, and exact values of heavy coordinates."""

import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Downlink, Sketch
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def sketched_sgd(
    loss: local.Loss,
    *,
    sketch: Sketch,
    server_rate: optax.ScalarOrSchedule,
    heavy: int = 0,
    fill: str = "",
) -> Algorithm:
    """Returns SketchedSGD: one gradient a round, of which heavy coordinates are used.

    Each worker adds its error memory to its gradient and sends the sketch of the sum.
    The server finds the heavy coordinates of the mean sketch and asks for the exact
    values there, along which all step. The other values stay in the worker's memory.

    Args:
      sketch: a count sketch of several rows.
      heavy: the number k of coordinates; 0 for as many as the sketch has columns.
      fill: "top": the coordinates with the largest estimates, as in the authors' code;
        "random": heavy ones and random others, as printed; empty: "top".

    Reference: Ivkin et al. (2019), Algorithm 2.
    """
    k = heavy or channels.columns(sketch)
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=channels.error_feedback(
            channels.heavy_values(sketch, k, fill=fill or "top")
        ),
        server=optax.sgd(server_rate),
        downlink=Downlink(
            optax.with_extra_args_support(optax.identity()), compressors.top_k(k).bits
        ),
    )
