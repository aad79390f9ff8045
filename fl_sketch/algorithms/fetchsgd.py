"""FetchSGD: momentum and error feedback inside the sketch."""

import warnings

import jax
import optax

from fl_sketch import channels, transforms
from fl_sketch import sketch as sketches
from fl_sketch.core.keys import Purpose
from fl_sketch.core.protocols import Algorithm, Downlink, Sketch
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local

STABLE = 50  # columns for each coordinate of a step with "subtract", of five rows


def fetchsgd(
    loss: local.Loss,
    *,
    sketch: Sketch,
    server_rate: optax.ScalarOrSchedule,
    momentum: jax.typing.ArrayLike = 0.9,
    heavy: int = 0,
    forget: str = "zero",
    masking: bool = False,
) -> Algorithm:
    """Returns FetchSGD: clients send sketches of one gradient and keep nothing.

    The server averages the sketches and adds up momentum and errors in sketch space.
    The k heaviest coordinates of the errors are the step of the model, and leave the
    errors.

    As printed ("error accumulation"), the sketch of the step is subtracted from the
    errors. The excess of a step in one coordinate, because of collisions, is then an
    error of others, and with as many coordinates as columns errors grow without end,
    whatever the rate. The code released with the paper sets to zero what the step
    touches, so that errors shrink.

    Args:
      sketch: a count sketch of several rows; its hashes are the same in all rounds.
      heavy: the number k of coordinates that a step changes; 0 for as many as the
        sketch has columns, or with "subtract" a fiftieth of it.
      momentum, forget, masking: see `transforms.fetchsgd`; "subtract" warns.

    Reference: Rothchild et al. (2020), Algorithm 1.
    """
    op = sketch
    if not op.fixed_key:
        op = sketches.fixed_key(op, jax.random.key(int(Purpose.HASHES)))
    k = heavy
    if not k:
        columns = channels.columns(op)
        k = columns if forget == "zero" else max(1, columns // STABLE)
    if forget == "subtract":
        msg = (
            "forget='subtract' may let errors grow without end: with five rows it did "
            f"not up to k = a fiftieth of the columns (here k={k}), with fewer rows it "
            "did at any; forget='zero' does not."
        )
        warnings.warn(msg, stacklevel=2)
    return Algorithm(
        local=local.one_gradient(loss),
        uplink=channels.sketched(op, read="message"),
        server=optax.identity(),
        downlink=Downlink(
            transforms.fetchsgd(
                op, k, server_rate, momentum=momentum, forget=forget, masking=masking
            ),
            compressors.top_k(k).bits,
        ),
    )
