"""Sketched adaptive federated learning."""

import jax
import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Sketch
from fl_sketch.transforms import local


def safl(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: float,
    server: optax.GradientTransformation,
    client_clip: float | jax.Array = 0.0,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns SAFL: clients send sketches of their updates, the server adapts.

    Algorithm 1: each client takes K SGD steps from the server's model (lines 3-6) and
    sends the sketch of x_0 - x_K (line 7). The server averages the sketches and sends
    the mean down (line 9). Algorithm 2: the model takes a step of an adaptive
    optimizer, whose moments are of the de-sketched mean: `transforms.paper_amsgrad` as
    printed, or any of optax. The sketch is of the whole update, or with `leaf_by_leaf`
    of each array of parameters, which the paper leaves open.

    For gradients with heavy tails the paper announces a clipped form without printing
    it. Here clients shorten x_0 - x_K to the norm `client_clip` (tau; 0: never) before
    they sketch it, the last place where its length is known.

    Reference: Chen et al., Algorithms 1 and 2.
    """
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.clipped(channels.sketched(sketch), client_clip),
        server=server,
    )
