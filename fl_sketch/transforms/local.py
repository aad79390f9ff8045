"""Local work: what a client computes between receiving the model and answering.

Batches have a leading axis of steps; a loss is a function of parameters, one batch and,
if it wants one, a key (for dropout, or augmentation). Updates are pseudo-gradients,
x_0 - x_K, whatever the client's optimizer. The loss of a `Stateful` model returns also
what becomes of its statistics, whose update is the same difference.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees, validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Keys, Local, Server, Tree, Work
from fl_sketch.core.trees import Stateful, like_model

Loss = Callable[..., Any]  # (params, batch) or (params, batch, key) -> scalar
Stepwise = Callable[[Tree, Tree, jax.typing.ArrayLike], Any]  # (..., step's number)
Optimizer = Callable[[Any], optax.GradientTransformation]  # of a rate


def stepwise(loss: Loss, keys: Keys) -> Stepwise:
    """Returns a loss of (parameters, batch, number of the step), with its keys drawn.

    There is one for each client, round and step, from the client's own key.

    Args:
      loss: the loss of one batch.
      keys: the client's keys of the round.

    Raises:
      TypeError: in one line, for what is no loss, as soon as it is traced.
    """
    keyed, own = _takes_key(loss), apart(keys.own, Purpose.LOSS)

    def value(params, batch, step):
        given = [jax.random.fold_in(own, step)] if keyed else []
        found, rest = loss(params, batch, *given), ()
        if isinstance(params, Stateful):
            found, *rest = found
        dtype, shape = getattr(found, "dtype", type(found)), getattr(found, "shape", ())
        one = isinstance(found, float) or hasattr(found, "dtype")
        if not one or shape or not jnp.issubdtype(dtype, jnp.floating):
            name = getattr(dtype, "name", getattr(dtype, "__name__", dtype))
            msg = f"Expected loss to return one float, got {name} of shape {shape}."
            raise TypeError(msg)
        return (found, *rest) if rest else found

    return value


def _gradient(value: Stepwise):
    """Returns `(model, ...) -> (value, gradient, statistics after it)`."""

    def differentiated(model, *rest):
        if not isinstance(model, Stateful):
            found, grads = jax.value_and_grad(value)(model, *rest)
            return found, trees.cut_here(grads), ()

        def of_params(params):
            return value(Stateful(params, model.state), *rest)

        both = jax.value_and_grad(of_params, has_aux=True)
        (found, state), grads = both(model.params)
        return found, trees.cut_here(grads), state

    return differentiated


def _takes_key(loss: Loss) -> bool:
    """Returns whether a loss has a third argument without a default, or called key."""
    try:
        named = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        msg = f"Expected loss to be a function of (params, batch), got {loss!r}."
        raise TypeError(msg) from None
    needed = [p for p in named if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    able = [p for p in named if p.kind <= p.VAR_POSITIONAL]
    asks = any(p.default is p.empty for p in named if p.kind is p.KEYWORD_ONLY)
    if asks or len(needed) > 3 or (len(able) < 2 and all(p.kind < 2 for p in able)):
        msg = (
            "Expected loss to take (params, batch) or (params, batch, key), "
            f"got {inspect.signature(loss)}."
        )
        raise TypeError(msg)
    return len(needed) == 3 or (len(able) > 2 and able[2].name == "key")


def sgd_steps(
    loss: Loss, tx: optax.GradientTransformation, *, proximal: float = 0.0
) -> Local:
    """One optimizer step on each batch, starting from the server's parameters.

    The update is x_0 - x_K; the diagnostic "loss" is that of the first batch at x_0.

    Args:
      loss: the loss of one batch.
      tx: the client's optimizer; its state is made anew every round.
      proximal: the weight mu of FedProx, which adds `mu/2 |x - x_0|^2` to the loss.
    """

    def run(server, state, batches, keys):
        start = server.params
        step = _step(stepwise(loss, keys), tx, start, proximal)
        slices = batches, jnp.arange(_steps(batches))
        first = start, tx.init(trees.trained(start))
        (params, _), values = jax.lax.scan(step, first, slices)
        return _work(start, params, state, values[0])

    return Local(run)


def full_gradient_steps(
    loss: Loss, tx: optax.GradientTransformation, *, steps: int
) -> Local:
    """Several steps on one batch, the first: the client's whole data, say.

    The update and the diagnostics are as in `sgd_steps`.

    Args:
      loss: the loss of one batch.
      tx: the client's optimizer; its state is made anew every round.
      steps: the number of steps.
    """
    validate.at_least_one(steps=steps)

    def run(server, state, batches, keys):
        start, batch = server.params, jax.tree.map(lambda b: b[0], batches)
        step = _step(stepwise(loss, keys), tx, start)
        (params, _), values = jax.lax.scan(
            lambda carry, number: step(carry, (batch, number)),
            (start, tx.init(trees.trained(start))),
            jnp.arange(steps),
        )
        return _work(start, params, state, values[0])

    return Local(run)


def one_gradient(loss: Loss) -> Local:
    """The gradient of `loss` on the first batch as it is, no difference of models."""

    def run(server, state, batches, keys):
        batch, model = jax.tree.map(lambda b: b[0], batches), server.params
        value, grads, after = _gradient(stepwise(loss, keys))(model, batch, 0)
        moved = _moved(model, after)
        return Work(like_model(model, grads, moved), state, {"loss": value})

    return Local(run)


def gradient_pair(loss: Loss, previous: Callable[[Server], Tree]) -> Local:
    """(gradient here, its change since the last round), both on the first batch.

    What MARINA's channel chooses from.

    Args:
      loss: the loss of one batch.
      previous: `(server) -> params`, the model of the last round, from what clients
        fetch with this one.
    """

    def run(server, state, batches, keys):
        batch, own = jax.tree.map(lambda b: b[0], batches), stepwise(loss, keys)
        value, now = jax.value_and_grad(own)(server.params, batch, 0)
        before = jax.grad(own)(previous(server), batch, 0)
        change = jax.tree.map(jnp.subtract, now, before)
        return Work((now, change), state, {"loss": value})

    return Local(run)


def tracked_steps(
    loss: Loss, *, rate: jax.typing.ArrayLike, gain: jax.typing.ArrayLike
) -> Local:
    """Steps along gradient - c, with a variate c that follows what was not heard.

    FedSKETCHGATE, Algorithm 6: after the round, c -= gain (Phi - Phi_own), where Phi
    is the estimate all received and Phi_own what the client's own message stood for.

    Variates carry over what plain local steps lose at the next round's start. They grow
    without end where a client's loss is more curved than 2/eta (with more than one
    step). They also do so where Phi_own is an estimate whose error, relative to what it
    estimates, is above 1/(gain eta tau).

    Args:
      loss: the loss of one batch.
      rate: the step size eta.
      gain: the factor of the variates' moves: 1/(eta tau) undoes the factor in the
        update exactly; the paper prints 1/tau.
    """

    def run(server, variate, batches, keys):
        step = _corrected(stepwise(loss, keys), rate, variate)
        params, value = step(server.params, batches)
        return _work(server.params, params, variate, value)

    def finish(variate, delivery):
        return jax.tree.map(
            lambda c, mean, own: c - gain * (mean - own),
            variate,
            trees.trained(delivery.estimate),
            trees.trained(delivery.own),
        )

    return Local(run, _zeros, finish)


def control_variates(loss: Loss, *, rate: jax.typing.ArrayLike, steps: int) -> Local:
    """Steps along gradient - c_i + c, where c is the channel's memory at the server.

    SCAFFOLD, its second option: c_i becomes c_i - c + (x_0 - x_K) / (K eta).

    Args:
      loss: the loss of one batch.
      rate: the step size eta.
      steps: the number K of batches.
    """

    def run(server, variate, batches, keys):
        _require_steps(steps, batches)
        own = jax.tree.map(jnp.subtract, variate, server.memory)
        step = _corrected(stepwise(loss, keys), rate, own)
        params, value = step(server.params, batches)
        return _work(server.params, params, own, value)

    def finish(own, delivery):
        return jax.tree.map(
            lambda c, moved: c + moved / (steps * rate),
            own,
            trees.trained(delivery.own),
        )

    return Local(run, _zeros, finish)


def measuring(
    inner: Local, measure: Callable[[Tree, Tree], dict[str, jax.Array]]
) -> Local:
    """Adds to the diagnostics what a client measures of the model that it was given.

    Args:
      inner: the local work.
      measure: `(params, batch) -> {name: scalar}`, called with the first batch.
    """

    def run(server, state, batches, keys):
        work = inner.run(server, state, batches, keys)
        found = measure(server.params, jax.tree.map(lambda b: b[0], batches))
        return work._replace(diagnostics=work.diagnostics | found)

    return inner._replace(run=run)


def _corrected(loss: Stepwise, rate, correction):
    """Returns steps along gradient - correction, with the first loss."""

    def step(model, batch_and_number):
        value, grads, state = _gradient(loss)(model, *batch_and_number)
        params = jax.tree.map(
            lambda x, g, c: x - rate * (g - c), trees.trained(model), grads, correction
        )
        return like_model(model, params, state), value

    def steps(start, batches):
        slices = batches, jnp.arange(_steps(batches))
        params, values = jax.lax.scan(step, start, slices)
        return params, values[0]

    return steps


def _require_steps(steps: int, batches) -> None:
    """Raises a ValueError unless clients have as many batches as somebody said."""
    if _steps(batches) != steps:
        msg = f"Expected steps={_steps(batches)}, the batches of a client, got {steps}."
        raise ValueError(msg)


def _steps(batches) -> int:
    return jax.tree.leaves(batches)[0].shape[0]


def _step(loss: Stepwise, tx, start, proximal=0.0):
    """Returns one optimizer step on a batch, for a scan over (params, opt)."""

    def step(carry, batch_and_number):
        model, opt = carry
        value, grads, state = _gradient(loss)(model, *batch_and_number)
        params = trees.trained(model)
        if not validate.is_off(proximal):
            grads = jax.tree.map(
                lambda g, x, x0: g + proximal * (x - x0),
                grads,
                params,
                trees.trained(start),
            )
        updates, opt = tx.update(grads, opt, params)
        params = optax.apply_updates(params, updates)
        return (like_model(model, params, state), opt), value

    return step


def _moved(model, after):
    """Returns what a model's statistics lost, as an update has it; () without any."""
    if not isinstance(model, Stateful):
        return ()
    return jax.tree.map(jnp.subtract, model.state, after)


def _work(start, params, state, value) -> Work:
    return Work(jax.tree.map(jnp.subtract, start, params), state, {"loss": value})


def _zeros(model):
    return jax.tree.map(jnp.zeros_like, trees.trained(model))
