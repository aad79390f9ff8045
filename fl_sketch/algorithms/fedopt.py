"""Adaptive federated optimisation."""

import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm
from fl_sketch.transforms import local


def fedopt(
    loss: local.Loss,
    *,
    client_rate: float,
    server: optax.GradientTransformation,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns FedOpt: local SGD, and any optax optimizer on the mean update.

    FedAdam is `server=optax.adam(...)`, FedYogi `optax.yogi(...)`, FedAdagrad
    `optax.adagrad(...)`. These are optax's forms: Adam corrects the bias of its
    moments, which the paper's does not. `transforms.paper_amsgrad` is AMSGrad as papers
    print it.

    Reference: Reddi et al. (2021), Algorithm 2.
    """
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.exact(),
        server=server,
    )
