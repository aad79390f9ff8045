"""FedCAMS: compressed local updates with error feedback, and AMSGrad at the server."""

import optax

from fl_sketch import channels, transforms
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm, Compressor
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def fedcams(
    loss: local.Loss,
    *,
    compressor: Compressor,
    client_rate: float,
    server_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-8,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns FedCAMS.

    Each client sends C(Delta + e), of its update and its error, and keeps the rest as
    e; absent clients keep theirs. The server takes AMSGrad's step (Option 1), where eps
    is a floor of the second moment before the root. The compressor C must be a
    contraction; the paper has `scaled_sign` and `top_k`.

    Reference: Wang, Lin and Chen (2022), ICML, Algorithm 2.
    """
    compressors.require_contraction("fedcams", compressor)
    if validate.is_off(eps):
        msg = "Expected eps > 0 for fedcams, a floor of what divides, got eps=0."
        raise ValueError(msg)
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.error_feedback(channels.compressed(compressor)),
        server=transforms.paper_amsgrad(server_rate, b1, b2, eps=0.0, floor=eps),
    )
