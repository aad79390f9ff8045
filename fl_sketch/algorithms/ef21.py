"""EF21: compressed changes of a running estimate of every client's gradient."""

import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Compressor
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def ef21(
    loss: local.Loss,
    *,
    compressor: Compressor,
    server: optax.GradientTransformation,
) -> Algorithm:
    """Returns EF21 with any optimizer at the server.

    Each client keeps g_i and sends C(grad f_i(x) - g_i) (lines 5 and 6); both it and
    the server add what was sent (lines 6 and 8): the server has the mean of g_i. The
    compressor C must be a contraction, such as `top_k`. In the paper all take part in
    every round; where fewer do, absent clients keep their g_i, as in Fatkhullin et al.
    (2021).

    Reference: Richtarik et al. (2021), Algorithm 2.
    """
    compressors.require_contraction("ef21", compressor)
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=channels.difference(channels.compressed(compressor)),
        server=server,
    )
