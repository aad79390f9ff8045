"""CD-Adam: AMSGrad on gradients that are Markov compressed in both directions."""

import optax

from fl_sketch import channels, transforms
from fl_sketch.core.protocols import Algorithm, Compressor, Downlink
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def cd_adam(
    loss: local.Loss,
    *,
    compressor: Compressor,
    server_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-8,
) -> Algorithm:
    """Returns CD-Adam.

    A worker sends C(g_i - g_hat_i) and both sides add it to g_hat_i. The server sends
    C(mean - g_hat) and all add it to g_hat. All take AMSGrad's step with g_hat, in the
    form that the paper prints, without bias correction. The compressor C must be a
    contraction; the paper has `scaled_sign` and `top_k`.

    Reference: Wang, Lin and Chen (2022), AISTATS, Algorithm 1.
    """
    compressors.require_contraction("cd_adam", compressor)
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=channels.difference(channels.compressed(compressor)),
        server=optax.chain(
            optax.trace(decay=1.0),  # the sum of the changes
            transforms.paper_amsgrad(server_rate, b1, b2, eps),
        ),
        downlink=Downlink(transforms.changes(compressor), compressor.bits),
    )
