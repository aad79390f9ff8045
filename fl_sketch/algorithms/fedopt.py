"""Adaptive federated optimisation."""

import optax

from fl_sketch import channels, local
from fl_sketch.protocols import Algorithm


def fedopt(
    loss: local.Loss, *, client_rate: float, server: optax.GradientTransformation
) -> Algorithm:
    """Returns FedOpt: local SGD, and any optax optimizer on the mean update.

    FedAdam is `server=optax.adam(...)`, FedYogi `optax.yogi(...)`, FedAdagrad
    `optax.adagrad(...)`; see `transforms.paper_amsgrad` for AMSGrad as papers
    print it.

    Args:
      loss: the loss of one batch.
      client_rate: the step size eta of the local steps.
      server: the server's optimizer, any of optax.

    Reference: Reddi et al. (2021), Algorithm 2.
    """
    return Algorithm(
        local=local.sgd_steps(loss, optax.sgd(client_rate)),
        uplink=channels.exact(),
        server=server,
    )
