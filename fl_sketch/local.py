"""Local work: what a client computes between receiving the model and answering.

Batches have a leading axis of steps; a loss is a function of parameters and one
batch. Updates are pseudo-gradients, x_0 - x_K, whatever the client's optimizer.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fl_sketch import validate
from fl_sketch.protocols import Local, Server, Tree, Work

Loss = Callable[[Tree, Tree], jax.Array]  # (params, batch) -> scalar


def sgd_steps(
    loss: Loss, tx: optax.GradientTransformation, *, proximal: float = 0.0
) -> Local:
    """One optimizer step on each batch, starting from the server's parameters.

    Args:
      loss: of one batch.
      tx: the client's optimizer; its state is made anew every round.
      proximal: mu of FedProx, which adds mu/2 |x - x_0|^2 to the loss.
    """

    def run(server, state, batches, keys):
        del keys
        start = server.params

        step = _step(loss, tx, start, proximal)
        (params, _), values = jax.lax.scan(step, (start, tx.init(start)), batches)
        return _work(start, params, state, values[0])

    return Local(run)


def full_gradient_steps(
    loss: Loss, tx: optax.GradientTransformation, *, steps: int
) -> Local:
    """Several steps on one batch, the first: the client's whole data, say.

    Args:
      loss: of one batch.
      tx: the client's optimizer; its state is made anew every round.
      steps: how many steps.
    """
    validate.at_least_one(steps=steps)

    def run(server, state, batches, keys):
        del keys
        start, batch = server.params, jax.tree.map(lambda b: b[0], batches)

        step = _step(loss, tx, start)
        (params, _), values = jax.lax.scan(
            lambda carry, _: step(carry, batch),
            (start, tx.init(start)),
            length=steps,
        )
        return _work(start, params, state, values[0])

    return Local(run)


def one_gradient(loss: Loss) -> Local:
    """The gradient on the first batch, as it is."""

    def run(server, state, batches, keys):
        del keys
        batch = jax.tree.map(lambda b: b[0], batches)
        value, grads = jax.value_and_grad(loss)(server.params, batch)
        return Work(grads, state, {"loss": value})

    return Local(run)


def gradient_pair(loss: Loss, previous: Callable[[Server], Tree]) -> Local:
    """(gradient here, its change since the last round), both on the first batch.

    What MARINA's channel chooses from.

    Args:
      loss: of one batch.
      previous: the model of the last round, from what clients fetch with this one.
    """

    def run(server, state, batches, keys):
        del keys
        batch = jax.tree.map(lambda b: b[0], batches)
        value, now = jax.value_and_grad(loss)(server.params, batch)
        before = jax.grad(loss)(previous(server), batch)
        change = jax.tree.map(jnp.subtract, now, before)
        return Work((now, change), state, {"loss": value})

    return Local(run)


def tracked_steps(
    loss: Loss, *, rate: jax.typing.ArrayLike, gain: jax.typing.ArrayLike
) -> Local:
    """Steps along gradient - c, with a variate c that follows what was not heard.

    FedSKETCHGATE, Algorithm 6: after the round, c -= gain (Phi - Phi_own), where Phi
    is the estimate all received and Phi_own what the client's own message stood for.

    Variates carry over what plain local steps lose at the next round's start: they grow
    without end where a client's loss is more curved than 2/eta (with more than one
    step), and where Phi_own is an estimate whose error, relative to what it estimates,
    is above 1/(gain eta tau).

    Args:
      loss: of one batch.
      rate: the step size eta.
      gain: 1/(eta tau) undoes the factor in the update exactly; the paper prints
        1/tau.
    """

    def run(server, variate, batches, keys):
        del keys
        params, value = _corrected(loss, rate, server.params, variate, batches)
        return _work(server.params, params, variate, value)

    def finish(variate, delivery):
        return jax.tree.map(
            lambda c, mean, own: c - gain * (mean - own),
            variate,
            delivery.estimate,
            delivery.own,
        )

    return Local(run, _zeros, finish)


def control_variates(loss: Loss, *, rate: jax.typing.ArrayLike, steps: int) -> Local:
    """Steps along gradient - c_i + c, where c is the channel's memory at the server.

    SCAFFOLD, its second option: c_i becomes c_i - c + (x_0 - x_K) / (K eta).

    Args:
      loss: of one batch.
      rate: the step size eta.
      steps: K, how many batches there are.
    """

    def run(server, variate, batches, keys):
        del keys
        own = jax.tree.map(jnp.subtract, variate, server.memory)
        params, value = _corrected(loss, rate, server.params, own, batches)
        return _work(server.params, params, own, value)

    def finish(own, delivery):
        return jax.tree.map(
            lambda c, moved: c + moved / (steps * rate), own, delivery.own
        )

    return Local(run, _zeros, finish)


def measuring(
    inner: Local, measure: Callable[[Tree, Tree], dict[str, jax.Array]]
) -> Local:
    """Adds to the diagnostics what a client measures of the model that it was given.

    Args:
      inner: the work.
      measure: a function of parameters and one batch, the first.
    """

    def run(server, state, batches, keys):
        work = inner.run(server, state, batches, keys)
        found = measure(server.params, jax.tree.map(lambda b: b[0], batches))
        return work._replace(diagnostics=work.diagnostics | found)

    return inner._replace(run=run)


def _corrected(loss, rate, start, correction, batches):
    """Returns (parameters after steps along gradient - correction, first loss)."""

    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        params = jax.tree.map(
            lambda x, g, c: x - rate * (g - c), params, grads, correction
        )
        return params, value

    params, values = jax.lax.scan(step, start, batches)
    return params, values[0]


def _step(loss, tx, start, proximal=0.0):
    """Returns one optimizer step on a batch, for a scan over (params, opt)."""

    def step(carry, batch):
        params, opt = carry
        value, grads = jax.value_and_grad(loss)(params, batch)
        if not validate.is_off(proximal):
            grads = jax.tree.map(
                lambda g, x, x0: g + proximal * (x - x0), grads, params, start
            )
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    return step


def _work(start, params, state, value) -> Work:
    return Work(jax.tree.map(jnp.subtract, start, params), state, {"loss": value})


def _zeros(params):
    return jax.tree.map(jnp.zeros_like, params)
