"""Sign descent: by majority vote, or with what the signs left out fed back."""

import jax
import jax.numpy as jnp
import optax

from fl_sketch import channels, transforms
from fl_sketch.core.protocols import Algorithm, Downlink
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def sign_sgd(loss: local.Loss, *, server_rate: optax.ScalarOrSchedule) -> Algorithm:
    """Returns signSGD with majority vote, one bit a number in both directions.

    Workers send the signs of their gradients, the server the sign of their sum. A tie
    counts as positive, since the wire has one bit a number. Every coordinate moves by
    the server's rate, and none in a round without votes.

    Reference: Bernstein et al. (2019), Algorithm 1.
    """

    def signs(updates, params):
        del params
        any_vote = sum(jnp.any(u != 0) for u in jax.tree.leaves(updates)) > 0

        def sign(u):
            return jnp.where(jnp.isnan(u), u, jnp.where(u < 0, -1.0, 1.0)) * any_vote

        return jax.tree.map(sign, updates)

    vote = optax.stateless(signs)
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=channels.compressed(compressors.sign()),
        server=optax.sgd(server_rate),
        downlink=Downlink(optax.with_extra_args_support(vote), compressors.sign().bits),
    )


def ef_sign_sgd(
    loss: local.Loss,
    *,
    client_rate: float,
    server_rate: optax.ScalarOrSchedule,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns EF-signSGD: signs and their mean size, errors kept by both sides.

    Args:
      client_rate: the step size eta of the local steps; the paper has one step.

    Reference: Karimireddy et al. (2019), Algorithm 1; in both directions, Zheng et al.
    (2019), Algorithm 1.
    """
    sign = compressors.scaled_sign()
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.error_feedback(channels.compressed(sign)),
        server=optax.sgd(server_rate),
        downlink=Downlink(
            transforms.error_feedback(transforms.compress(sign)), sign.bits
        ),
    )
