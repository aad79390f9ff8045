"""MARINA: gradient differences, unbiased compression, a shared coin."""

import jax
import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Compressor
from fl_sketch.transforms import local


def marina(
    loss: local.Loss,
    *,
    compressor: Compressor,
    server_rate: optax.ScalarOrSchedule,
    probability: float,
) -> Algorithm:
    """Returns MARINA, with all clients or some of them in a round.

    Line 6: x^(k+1) = x^k - gamma g^k. Line 7: with probability p a client sends its
    gradient at x^(k+1), else the compressed difference of its gradients at x^(k+1) and
    at x^k on the same batch. The mean is, or is added to, g (line 9). For the
    paper's exact form a batch is a client's whole data. Clients know x^k from x^(k+1)
    and g^k, which they fetch together, and keep nothing. A client that was
    away can take part at once: the paper's PP-MARINA, except that its rounds of whole
    gradients have all clients.

    Args:
      compressor: an unbiased compressor, `random_k` in the paper.
      server_rate: the rate gamma, constant.
      probability: the probability p of a whole gradient; 1 is gradient descent.

    Reference: Gorbunov et al. (2021), Algorithms 1 and 4.
    """
    if not compressor.unbiased:
        msg = "marina needs an unbiased compressor: random_k or qsgd."
        raise ValueError(msg)
    if callable(server_rate):
        msg = "marina needs a constant server rate: server.schedule=constant."
        raise ValueError(msg)

    def previous(server):
        return jax.tree.map(
            lambda x, g: x + server_rate * g, server.params, server.memory
        )

    return Algorithm(
        local=local.gradient_pair(loss, previous),
        uplink=channels.marina(compressor, probability),
        server=optax.sgd(server_rate),
    )
