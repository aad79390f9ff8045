"""CocktailSGD: random sparsification, then top-k, then quantisation, both ways."""

import optax

from fl_sketch import channels, transforms
from fl_sketch.core.protocols import Algorithm, Compressor, Downlink
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local


def cocktail_sgd(
    loss: local.Loss,
    *,
    cocktail: Compressor,
    client_rate: float,
    server_rate: optax.ScalarOrSchedule,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns CocktailSGD: error feedback around a chain of three compressors.

    Workers add their error to what their local steps came to, compress it and keep
    the rest; the server does the same with the mean, and sends that down.

    Args:
      loss: the loss of one batch.
      cocktail: a contraction, `compressors.then(random_k(.., unbiased=False),
        top_k(..), nearest(..))`.
      client_rate: the step size eta of the local steps.
      client_optimizer: the clients' optimizer, a function of that rate.
      server_rate: the server's rate gamma, or a schedule of it.

    Raises:
      ValueError: for a compressor that is no contraction.

    Reference: Wang et al. (2023), Algorithm 1.
    """
    compressors.require_contraction("cocktail_sgd", cocktail)
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.error_feedback(channels.compressed(cocktail)),
        server=optax.sgd(server_rate),
        downlink=Downlink(
            transforms.error_feedback(transforms.compress(cocktail)), cocktail.bits
        ),
    )
