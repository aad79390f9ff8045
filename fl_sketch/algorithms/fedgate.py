"""FedGATE and FedCOMGATE: gradient tracking, exact or quantised."""

import jax
import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def fedgate(
    loss: local.Loss,
    *,
    client_rate: jax.typing.ArrayLike,
    server_rate: optax.ScalarOrSchedule,
    gain: jax.typing.ArrayLike,
) -> Algorithm:
    """Returns FedGATE: what FedSKETCHGATE is without a sketch.

    Args:
      loss: the loss of one batch.
      client_rate: the step size eta of the local steps.
      server_rate: the server's rate gamma, or a schedule of it.
      gain: the gain of the variates; 1/(eta tau) in the paper.

    Reference: Haddadpour et al. (2021), Federated Learning with Compression,
    Algorithm 2 without its compression.
    """
    return Algorithm(
        local=local.tracked_steps(loss, rate=client_rate, gain=gain),
        uplink=channels.exact(),
        server=optax.sgd(server_rate),
    )


def fedcomgate(
    loss: local.Loss,
    *,
    client_rate: jax.typing.ArrayLike,
    server_rate: optax.ScalarOrSchedule,
    gain: jax.typing.ArrayLike,
    levels: int,
) -> Algorithm:
    """Returns FedCOMGATE: FedGATE with updates quantised by QSGD.

    Args:
      loss: the loss of one batch.
      client_rate: the step size eta of the local steps.
      server_rate: the server's rate gamma, or a schedule of it.
      gain: the gain of the variates; 1/(eta tau) in the paper.
      levels: the number of levels of the quantisation.

    Reference: Haddadpour et al. (2021), Algorithm 2.
    """
    exact = fedgate(loss, client_rate=client_rate, server_rate=server_rate, gain=gain)
    return exact._replace(uplink=channels.compressed(compressors.qsgd(levels)))
