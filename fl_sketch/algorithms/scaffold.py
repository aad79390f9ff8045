"""SCAFFOLD: control variates, which are related to gradient tracking."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Channel, Memory
from fl_sketch.transforms import local


def scaffold(
    loss: local.Loss,
    *,
    client_rate: jax.typing.ArrayLike,
    server_rate: optax.ScalarOrSchedule,
    steps: int | None,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns SCAFFOLD with option II for the clients' control variates.

    A client takes K `steps` along g - c_i + c, each on its own batch, then sets c_i to
    c_i - c + (x_0 - x_K)/(K eta). In the paper it also sends that change. The server
    can compute the mean change from the mean of x_0 - x_K: it is mean / (K eta) - c. So
    a client uploads one vector, and downloads the model and c.

    Without `steps` each client takes one for every batch that it has, as with epochs.
    Their numbers K differ, and so a client also uploads (x_0 - x_K)/(K eta). With an
    optimizer that is not plain SGD, c_i - c is added to its steps, not its gradients.

    If all clients take part in every round, this is FedGATE with gain 1/(K eta).

    Reference: Karimireddy et al. (2020), Algorithm 1.
    """
    scale = None if steps is None else 1 / (steps * client_rate)
    tx = client_optimizer(client_rate)
    return Algorithm(
        local=local.control_variates(loss, tx, rate=client_rate, steps=steps),
        uplink=_remembering(channels.exact(), scale),
        server=optax.sgd(server_rate),
    )


def _remembering(channel: Channel, scale: Any) -> Channel:
    """Keeps c at the server: c += (sum over S of (x_0 - x_K)/(K eta) - c) / N.

    The scale is 1/(K eta) if K is the same for all; None: updates are pairs of
    x_0 - x_K and what is averaged into c, which clients then send too.
    """

    def init(params):
        inner = channel.init(params)
        return Memory(inner.client, jax.tree.map(jnp.zeros_like, params))

    def talk(update, memory, keys, round):
        inner = Memory(memory.client)
        alike = scale is not None
        moved, slope = (update, None) if alike else update
        delivery, inner = yield from channel.talk(moved, inner, keys, round)
        second = delivery
        if not alike:
            second, inner = yield from channel.talk(slope, inner, keys, round)
        total = round.denominator / round.population * (scale if alike else 1)
        present = round.present / round.population
        variate = jax.tree.map(
            lambda c, mean: c + total * mean - present * c,
            memory.server,
            second.estimate,
        )
        delivery = delivery._replace(own=second.own)
        return delivery, Memory(inner.client, variate)

    return Channel(talk, init)
