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

    Workers add their error to their update, compress the sum and keep the rest; the
    server does the same with the mean, and sends the result down. The cocktail must be
    a contraction: `compressors.then(random_k(.., unbiased=False), top_k(..),
    nearest(..))`.

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
