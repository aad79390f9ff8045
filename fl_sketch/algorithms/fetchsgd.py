"""FetchSGD: momentum and error feedback inside the sketch."""

import jax
import optax

from fl_sketch import channels, compressors, local, transforms
from fl_sketch import sketch as sketches
from fl_sketch.keys import Purpose
from fl_sketch.protocols import Algorithm, Downlink, Sketch


def fetchsgd(
    loss: local.Loss,
    *,
    sketch: Sketch,
    server_rate: optax.ScalarOrSchedule,
    momentum: jax.typing.ArrayLike = 0.9,
    heavy: int = 0,
    forget: str = "subtract",
    masking: bool = False,
    window: int = 0,
) -> Algorithm:
    """Returns FetchSGD: clients send sketches of one gradient and keep nothing.

    Lines 4 to 6: a client sketches its gradient. Lines 9 to 14: the server averages
    the sketches, adds momentum and errors up in sketch space, takes the k heaviest
    coordinates as the step of the model, and their sketch out of the errors.

    Args:
      loss: the loss of one batch.
      sketch: a count sketch of several rows; its hashes are the same in all rounds.
      server_rate: the rate eta, or a schedule of it.
      momentum: the decay rho of the momentum.
      heavy: the number k of coordinates that a step changes; 0 for as many as the
        sketch has columns.
      forget: the way in which a step leaves the errors: "subtract" as in the paper, or
        "zero" as in the code released with it.
      masking: whether momentum is forgotten where the step was, as in that code.
      window: the number of rounds of which errors are kept; 0: all.

    Reference: Rothchild et al. (2020), Algorithm 1.
    """
    op = with_its_hashes(sketch)
    k = heavy or channels.columns(op)
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=channels.sketched(op, read="message"),
        server=optax.identity(),
        downlink=Downlink(
            transforms.fetchsgd(
                op,
                k,
                server_rate,
                momentum=momentum,
                forget=forget,
                masking=masking,
                window=window,
            ),
            compressors.top_k(k).bits,
        ),
    )


def with_its_hashes(sketch: Sketch) -> Sketch:
    """Returns `sketch` with the hashes of all rounds, or its own if it has them."""
    if sketch.fixed_key:
        return sketch
    return sketches.fixed_key(sketch, jax.random.key(int(Purpose.HASHES)))
