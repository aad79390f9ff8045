"""QSGD: unbiased quantised gradients."""

import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def qsgd(
    loss: local.Loss, *, levels: int, server: optax.GradientTransformation
) -> Algorithm:
    """Returns QSGD: clients send a gradient, each number rounded at random.

    Reference: Alistarh et al. (2017), Algorithm 1.
    """
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=channels.compressed(compressors.qsgd(levels)),
        server=server,
    )
