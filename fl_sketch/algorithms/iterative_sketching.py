"""Iterative sketching: local gradient steps, sketches up, their mean down."""

import jax
import optax

from fl_sketch import channels, local
from fl_sketch.protocols import Algorithm, Key, Message, Sketch, Tree


def iterative_sketching(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: float,
    server_rate: optax.ScalarOrSchedule = 1.0,
) -> Algorithm:
    """Returns the iterative sketching algorithm of Song et al.

    Algorithm 1: each client takes K steps (lines 12-14), sends the sketch of what
    moved (lines 15-16), and hears the mean of the sketches (lines 19-20), along
    whose de-sketch all move (line 9). The paper prints the index of the next round
    there; it can only mean the sketch of the round that made the message.

    Nothing on the server's side looks at the model: `replay` makes it from the mean
    messages alone, which is what a client does that never asks for the model
    (`--config.download=messages`), and `engine.make_gossip_round` does without a
    server.

    Args:
      loss: of one batch; a batch that is a client's whole data gives the paper's
        gradient steps, a part of it the stochastic ones of Algorithm 2.
      sketch: R; a fresh one every round.
      client_rate: eta_local.
      server_rate: eta_global; the theorems for K steps have 1.

    Reference: Song et al., Algorithm 1.
    """
    return Algorithm(
        local=local.sgd_steps(loss, optax.sgd(client_rate)),
        uplink=channels.sketched(sketch),
        server=optax.sgd(server_rate),
    )


def replay(
    sketch: Sketch,
    params: Tree,
    keys: Key,
    means: Message,
    *,
    server_rate: optax.ScalarOrSchedule = 1.0,
) -> Tree:
    """Returns the parameters after the rounds that had these mean messages.

    Formal guarantee, tested for every operator: on one platform the numbers are
    those of the run, to the bit.

    Args:
      sketch: R, as in the run.
      params: before the first of these rounds.
      keys: the shared key of each round, which comes with its mean: those of
        `keys.sketch_keys` if the first round is round zero.
      means: the mean message of each round, along a leading axis.
      server_rate: as in the run.
    """
    server = optax.sgd(server_rate)

    def step(carry, heard):
        (params, opt), (shared, message) = carry, heard
        message = jax.lax.optimization_barrier(message)
        updates, opt = server.update(sketch.estimate(shared, message, params), opt)
        return (optax.apply_updates(params, updates), opt), None

    (params, _), _ = jax.lax.scan(step, (params, server.init(params)), (keys, means))
    return params
