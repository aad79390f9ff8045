"""DP-FedAvg with clipping, and DP-NormFedAvg with normalisation."""

import jax
import jax.numpy as jnp
import optax

from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Local
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local


def dp_fedavg(
    loss: local.Loss,
    *,
    client_rate: jax.typing.ArrayLike,
    threshold: jax.typing.ArrayLike,
    noise_multiplier: float,
    cohort: float,
    decay: jax.typing.ArrayLike = 1.0,
    server: optax.GradientTransformation | None = None,
    bound: clipping.OfLimit = clipping.clip,
    client_optimizer: local.Optimizer = optax.sgd,
) -> Algorithm:
    """Returns DP-FedAvg: local steps, clipped sums of gradients, noise, a server step.

    Algorithm 1: E steps of rate eta_k from w_k (lines 5-8); u = (w_k - w_E) / eta_k,
    clipped to C (line 9). Then a_k is the sum of these over the clients drawn, and
    noise, over the fixed r (lines 10 and 12). The step is w -= beta_k a_k (line 12),
    with beta_k = gamma eta_k and eta_k = decay^k eta_0 as in Appendix G. Noise is drawn
    once, on the sum: the paper's share of each client, N(0, r sigma^2), adds up to what
    the proof needs only with exactly r clients. `engine.poisson` must draw the clients.
    For the paper's full gradients a batch is a client's whole data. The last model is
    returned, not a random one of them (line 13).

    Args:
      client_rate: the step size eta_0 of the first round.
      threshold: the bound C on the norm of a client's sum of gradients.
      noise_multiplier: the noise z on the sum, over C; sigma of the paper is z C / r.
      cohort: the number r of clients expected in a round.
      decay: the decay of both rates from round to round.
      server: an optimizer with rate gamma, before eta_k; by default sgd(1).
      bound: `clipping.clip` or `clipping.normalise`.
      client_optimizer: the clients' optimizer, a function of the rate eta_k;
        (x_0 - x_K) / eta_k is bounded and noised for any optimizer.

    Reference: Das et al., Algorithm 1.
    """

    def rate(number):
        return client_rate * jnp.asarray(decay, jnp.float32) ** number

    server = optax.chain(
        server or optax.sgd(1.0), optax.scale_by_schedule(lambda count: rate(count))
    )
    return Algorithm(
        local=_gradient_sums(loss, rate, client_optimizer),
        uplink=channels.exact(),
        server=server,
        mechanism=mechanism.central(
            bound(threshold), noise_multiplier=noise_multiplier, denominator=cohort
        ),
    )


def dp_normfedavg(loss: local.Loss, **options) -> Algorithm:
    """Returns DP-NormFedAvg: `dp_fedavg` with `C u / |u|` instead of the clip.

    Reference: Das et al., Algorithm 2.
    """
    return dp_fedavg(loss, bound=clipping.normalise, **options)


def _gradient_sums(loss: local.Loss, rate, optimizer: local.Optimizer) -> Local:
    """Local SGD whose update is (x_0 - x_K) / eta_k, the sum of its gradients."""

    def run(server, state, batches, keys):
        eta = rate(server.round)
        inner = local.sgd_steps(loss, optimizer(eta))
        work = inner.run(server, state, batches, keys)
        return work._replace(update=jax.tree.map(lambda u: u / eta, work.update))

    return Local(run)
