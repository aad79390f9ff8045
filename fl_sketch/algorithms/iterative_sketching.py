"""Iterative sketching: local gradient steps, sketches up, their mean down."""

import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Sketch
from fl_sketch.transforms import local


def iterative_sketching(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: float,
    server_rate: optax.ScalarOrSchedule = 1.0,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns the iterative sketching algorithm of Song et al.

    Algorithm 1: each client takes K steps (lines 12-14), sends the sketch of its update
    (lines 15-16), and receives the mean of the sketches (lines 19-20), and all take a
    step along its estimate (line 9). The paper prints the index of the next round
    there; it can only mean the sketch of the round that made the message. A batch that
    is a client's whole data gives the paper's gradient steps, a part of it the
    stochastic ones of Algorithm 2. The theorems for K steps have server_rate=1.

    The server's step does not read the model: clients compute it from the mean messages
    alone with `--config.download=messages`.

    Reference: Song et al., Algorithm 1.
    """
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.sketched(sketch),
        server=optax.sgd(server_rate),
    )
