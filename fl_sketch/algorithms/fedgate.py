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
    """Returns FedGATE: FedSKETCHGATE without a sketch.

    The gain of the control variates is 1/(eta tau) in the paper.

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

    Reference: Haddadpour et al. (2021), Algorithm 2.
    """
    exact = fedgate(loss, client_rate=client_rate, server_rate=server_rate, gain=gain)
    return exact._replace(uplink=channels.compressed(compressors.qsgd(levels)))
