"""SCAFFOLD: control variates, which are related to gradient tracking."""

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
    steps: int,
) -> Algorithm:
    """Returns SCAFFOLD with option II for the clients' control variates.

    A client takes K `steps` along g - c_i + c, each on its own batch, then sets c_i to
    c_i - c + (x_0 - x_K)/(K eta). In the paper it also sends that change. The server
    can compute the mean change from the mean of x_0 - x_K: it is mean / (K eta) - c. So
    a client uploads one vector, and downloads the model and c.

    If all clients take part in every round, this is FedGATE with gain 1/(K eta).

    Reference: Karimireddy et al. (2020), Algorithm 1.
    """
    return Algorithm(
        local=local.control_variates(loss, rate=client_rate, steps=steps),
        uplink=_remembering(channels.exact(), 1 / (steps * client_rate)),
        server=optax.sgd(server_rate),
    )


def _remembering(channel: Channel, scale) -> Channel:
    """Keeps c at the server: c += (sum over S of scale (x_0 - x_K) - c) / N."""

    def init(params):
        inner = channel.init(params)
        return Memory(inner.client, jax.tree.map(jnp.zeros_like, params))

    def talk(update, memory, keys, round):
        inner = Memory(memory.client)
        delivery, inner = yield from channel.talk(update, inner, keys, round)
        total = round.denominator / round.population
        present = round.present / round.population
        variate = jax.tree.map(
            lambda c, mean: c + total * scale * mean - present * c,
            memory.server,
            delivery.estimate,
        )
        return delivery, Memory(inner.client, variate)

    return Channel(talk, init)
