"""Federated averaging."""

import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm
from fl_sketch.transforms import local


def fedavg(
    loss: local.Loss,
    *,
    client_rate: float,
    server_rate: optax.ScalarOrSchedule = 1.0,
    server_momentum: float = 0.0,
    proximal: float = 0.0,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns FedAvg: local SGD, the mean of the updates, and a server step along it.

    With a server rate of one the new model is the mean of the clients' models. With
    `proximal` it is FedProx; with one local step, FedSGD.

    Args:
      server_momentum: heavy-ball momentum at the server (FedAvgM); 0 for none.
      proximal: the weight mu of FedProx's pull to the server's model; 0 for none.

    References: McMahan et al. (2017), Algorithm 1; Das et al., Algorithm 3; Li et al.
    (2020), Algorithm 2.
    """
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate), proximal=proximal),
        uplink=channels.exact(),
        server=optax.sgd(server_rate, momentum=server_momentum or None),
    )
