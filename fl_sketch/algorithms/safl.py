"""Sketched adaptive federated learning."""

import optax

from fl_sketch import channels, local
from fl_sketch.protocols import Algorithm, Sketch


def safl(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: float,
    server: optax.GradientTransformation,
) -> Algorithm:
    """Returns SAFL: clients send sketches of their local progress, the server adapts.

    Algorithm 1: each client takes K SGD steps from the server's model (lines 3-6) and
    sends the sketch of x_0 - x_K (line 7); the server averages the sketches and
    sends the mean down (line 9). Algorithm 2: the model takes a step of an adaptive
    optimizer, both moments of which are built from the de-sketched mean.

    Args:
      loss: of one batch.
      sketch: R; a fresh one every round.
      client_rate: eta of the local steps.
      server: Adam, AMSGrad or another optimizer of optax.
    """
    return Algorithm(
        local=local.sgd_steps(loss, optax.sgd(client_rate)),
        uplink=channels.sketched(sketch),
        server=server,
    )
