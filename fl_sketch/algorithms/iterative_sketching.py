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

    Algorithm 1: each client takes K steps (lines 12-14), sends the sketch of what
    moved (lines 15-16), and hears the mean of the sketches (lines 19-20), along
    whose de-sketch all move (line 9). The paper prints the index of the next round
    there; it can only mean the sketch of the round that made the message.

    Nothing on the server's side looks at the model: `replay` makes it from the mean
    messages alone. A client that never asks for the model does this
    (`--config.download=messages`), and `gossip.make_gossip_round` does without a
    server.

    Args:
      loss: the loss of one batch; a batch that is a client's whole data gives the
        paper's gradient steps, a part of it the stochastic ones of Algorithm 2.
      sketch: the operator R; its key is fresh in every round.
      client_rate: the step size eta_local.
      client_optimizer: the clients' optimizer, a function of that rate.
      server_rate: the server's rate eta_global, or a schedule of it; the theorems for K
        steps have 1.

    Reference: Song et al., Algorithm 1.
    """
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.sketched(sketch),
        server=optax.sgd(server_rate),
    )
