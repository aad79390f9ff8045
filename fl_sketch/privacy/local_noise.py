"""Noise at every local step, before anything leaves a client: example-level privacy.

Song et al., Algorithms 2 and 3. A clip of every example's gradient replaces their
Lipschitz constant l_c, so that nothing has to be assumed of the loss.
"""

import math

import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Local, Work
from fl_sketch.privacy import clipping, gaussian
from fl_sketch.transforms.local import Loss, as_arrays, stepwise


def noisy_steps(
    loss: Loss,
    *,
    rate: jax.typing.ArrayLike,
    clip: jax.typing.ArrayLike,
    noise_multiplier: float,
) -> Local:
    """Takes a step x -= rate (sum of clipped gradients + noise) / B on each batch of B.

    The noise on the sum has standard deviation z l; that on the mean, the paper's
    sigma, z l / B. Each step is a separate release: a round has one for each batch, and
    none for a client that is not drawn. The final message costs nothing more, sketched
    or not.

    The `loss` is a mean over the examples of a batch, `clip` the bound l on the norm of
    one example's gradient, and `noise_multiplier` z; 0 only clips.

    Reference: Song et al., Algorithms 2 and 3.
    """
    validate.in_range(0, math.inf, noise_multiplier=noise_multiplier)
    clipping.clip(clip)  # refuses what is no bound

    def run(server, state, batches, keys):
        count, size = jax.tree.leaves(as_arrays(batches))[0].shape[:2]
        noise_key, value_of = apart(keys.own, Purpose.NOISE), stepwise(loss, keys)

        def loss_of_example(params, batch_of_one_and_number):
            """Each example has its own key in every step."""
            batch_of_one, number = batch_of_one_and_number
            return value_of(params, batch_of_one, number[0])

        def step(params, batch_and_number):
            batch, number = batch_and_number
            examples = batch, number * size + jnp.arange(size)
            total, value, dropped = clipping.clipped_gradient_sum(
                loss_of_example, params, examples, clip
            )
            if noise_multiplier:
                key = jax.random.fold_in(noise_key, number)
                scale = noise_multiplier * clip
                noise = gaussian.noise(key, total, scale)
                total = jax.tree.map(jnp.add, total, noise)
                total = gaussian.on_grid(total, scale)
            params = jax.tree.map(lambda x, g: x - rate * g / size, params, total)
            return params, (value, dropped)

        numbered = batches, jnp.arange(count)
        params, (values, dropped) = jax.lax.scan(step, server.params, numbered)
        update = jax.tree.map(jnp.subtract, server.params, params)
        diagnostics = {"loss": values[0], "rejected_examples": jnp.sum(dropped)}
        return Work(update, state, diagnostics)

    return Local(run)
