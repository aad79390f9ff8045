"""Private iterative sketching: noise at every local step, sketches of the updates."""

import jax
import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Sketch
from fl_sketch.privacy import local_noise
from fl_sketch.transforms import local


def private_sketching(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: jax.typing.ArrayLike,
    threshold: jax.typing.ArrayLike,
    noise_multiplier: float,
    server_rate: optax.ScalarOrSchedule = 1.0,
) -> Algorithm:
    """Returns iterative sketching whose local steps are private for every example.

    Algorithm 2: K steps with noise on a random batch's gradient (lines 13-17); the
    client uploads the sketch of the update (lines 18-19), downloads the mean (lines
    22-23) and desketches it (line 9). Every line uses the sketch key of the round that
    made the sketch. Messages are already private, so no mechanism bounds them. Noise
    after the sketch, which the paper leaves open, is `safl` with a mechanism.

    Args:
      threshold: the norm l_c to which every example's gradient is clipped.
      noise_multiplier: the noise z on the sum of a batch's gradients, over l_c; the
        paper's sigma is z l_c over the batch's size.

    Reference: Song et al., Algorithms 2 and 3.
    """
    return Algorithm(
        local=local_noise.noisy_steps(
            loss, rate=client_rate, clip=threshold, noise_multiplier=noise_multiplier
        ),
        uplink=channels.sketched(sketch),
        server=optax.sgd(server_rate),
    )
