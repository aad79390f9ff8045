"""Sketched adaptive federated learning."""

import jax
import jax.numpy as jnp
import optax

from fl_sketch import channels
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm, Halves, Sketch
from fl_sketch.transforms import local


def safl(
    loss: local.Loss,
    *,
    sketch: Sketch,
    client_rate: float,
    server: optax.GradientTransformation,
    client_clip: float | jax.Array = 0.0,
    client_optimizer: local.Optimizer = optax.sgd,
    moments: str = "mean",
) -> Algorithm:
    """Returns SAFL: clients send sketches of their updates, the server adapts.

    Algorithm 1: each client takes K SGD steps from the server's model (lines 3-6) and
    sends the sketch of x_0 - x_K (line 7). The server averages the sketches and sends
    the mean down (line 9). Algorithm 2: the model takes a step of an adaptive
    optimizer, whose moments are of the de-sketched mean: `transforms.paper_amsgrad` as
    printed, or any of optax. The sketch is of the whole update, or with `leaf_by_leaf`
    of each array of parameters, which the paper leaves open.

    The published text, SADL (Chen et al. 2025), halves the mean in its Algorithm 2: m
    is of the first half, v of the second, so that their errors are independent. That is
    `moments="halves"`; its server must take `Halves`, as `transforms.paper_amsgrad`.
    While both moments are noise, m / (sqrt(v) + eps) is a ratio of independent numbers,
    which is now and then as long as 1 / eps: tune eps (1e-5 to 1e-3) with the rate.

    For gradients with heavy tails the paper announces a clipped form without printing
    it. Here clients shorten x_0 - x_K to the norm `client_clip` (tau; 0: never) before
    they sketch it, the last place where its length is known.

    Reference: Chen et al. (2024), Algorithms 1 and 2.
    """
    validate.one_of(("mean", "halves"), moments=moments)
    uplink = channels.sketched(sketch)
    if moments == "halves":
        _require_takes_halves(server)
        uplink = channels.halves(sketch)
    return Algorithm(
        local=local.sgd_steps(loss, client_optimizer(client_rate)),
        uplink=channels.clipped(uplink, client_clip),
        server=server,
    )


def _require_takes_halves(server: optax.GradientTransformation) -> None:
    """Raises unless an optimizer makes one step of `Halves`."""

    def step(x):
        tx = optax.with_extra_args_support(server)
        return tx.update(Halves(x, x), tx.init(x), x, key=jax.random.key(0))[0]

    try:
        stepped = jax.eval_shape(step, jnp.zeros(1))
    except Exception:  # whatever an optimizer does with a tree that it does not expect
        stepped = None
    if not isinstance(stepped, jax.ShapeDtypeStruct):
        msg = "Expected a server that takes Halves with moments='halves', such as "
        raise ValueError(msg + "transforms.paper_amsgrad, got another.")
