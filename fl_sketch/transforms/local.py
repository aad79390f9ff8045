"""Local work: what a client computes between receiving the model and sending.

Batches have a leading axis of steps, or are `Passes` over a client's examples. A loss
is a function of parameters, one batch and, if it takes one, a key (for dropout, or
augmentation). With passes it also takes the examples' `weights`, some of them zero, and
is their weighted mean. Updates are pseudo-gradients x_0 - x_K, whatever the client's
optimizer. The loss of a `Stateful` model also returns the new statistics, whose update
is the same difference.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import shown, trees, validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Keys, Local, Server, Tree, Work
from fl_sketch.core.trees import Stateful, like_model, varying_like
from fl_sketch.data.batches import Passes, Weighted
from fl_sketch.transforms.parts import only as only

Loss = Callable[..., Any]  # (params, batch) or (params, batch, key) -> scalar
Stepwise = Callable[[Tree, Tree, jax.typing.ArrayLike], Any]  # (..., step's number)
Optimizer = Callable[[Any], optax.GradientTransformation]  # of a rate


def stepwise(loss: Loss, keys: Keys) -> Stepwise:
    """Returns a loss of (parameters, batch, number of the step), which draws its keys.

    There is a key for each client, round and step, from the client's `keys`.
    """
    takes_key, loss_key = _takes_key(loss), apart(keys.own, Purpose.LOSS)

    def value_of(params, batch, step):
        key, weights = [jax.random.fold_in(loss_key, step)] if takes_key else [], {}
        if isinstance(batch, Weighted):
            if isinstance(params, Stateful):
                msg = "Expected a model without batch statistics with epochs, whose "
                raise ValueError(msg + "short batches have no others, got one.")
            if "weights" not in inspect.signature(loss).parameters:
                msg = "Expected a loss with an argument weights=None with epochs, the "
                raise TypeError(msg + f"weights of a batch's examples, got {loss}.")
            batch, weights = batch.examples, {"weights": batch.weights}
        value, statistics = loss(params, batch, *key, **weights), ()
        if isinstance(params, Stateful):
            value, *statistics = value
        shape = getattr(value, "shape", None)
        if shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            msg = f"A loss returns one float, got {shown.short(value)}."
            raise TypeError(msg)
        return (value, *statistics) if statistics else value

    return value_of


def _takes_key(loss: Loss) -> bool:
    """Returns whether a loss has a third argument without a default, or called key."""
    try:
        signature = inspect.signature(loss)
        third = [*signature.parameters.values()][2:3]
        takes_key = any(
            p.kind <= p.POSITIONAL_OR_KEYWORD
            and (p.default is p.empty or p.name == "key")
            for p in third
        )
        signature.bind("params", "batch", *["key"] * takes_key)
    except (TypeError, ValueError) as error:
        msg = f"A loss takes (params, batch) or (params, batch, key), not this: {error}"
        raise TypeError(msg) from None
    return takes_key


def _gradient(value_of: Stepwise):
    """Returns `(model, ...) -> (value, gradient, statistics after it)`."""

    def differentiated(model, *batch):
        if not isinstance(model, Stateful):
            value, grads = jax.value_and_grad(value_of)(model, *batch)
            return value, trees.cut_here(grads), ()

        def of_params(params):
            return value_of(Stateful(params, model.state), *batch)

        with_statistics = jax.value_and_grad(of_params, has_aux=True)
        (value, state), grads = with_statistics(model.params)
        return value, trees.cut_here(grads), state

    return differentiated


def sgd_steps(
    loss: Loss, tx: optax.GradientTransformation, *, proximal: float = 0.0
) -> Local:
    """One optimizer step on each batch, starting from the server's parameters.

    The update is x_0 - x_K; the diagnostic "loss" is that of the first batch at x_0.

    Args:
      tx: the client's optimizer; its state starts anew in every round.
      proximal: the weight mu of FedProx, which adds `mu/2 |x - x_0|^2` to the loss.
    """

    def run(server, state, batches, keys):
        start = server.params

        def change(grads, params):
            if validate.is_off(proximal):
                return grads
            pull = jax.tree.map(jnp.subtract, params, trees.trained(start))
            return jax.tree.map(lambda g, far: g + proximal * far, grads, pull)

        slices = _numbered(batches)
        return _walked(stepwise(loss, keys), tx, start, slices, state, change)

    return Local(run)


def full_gradient_steps(
    loss: Loss, tx: optax.GradientTransformation, *, steps: int
) -> Local:
    """Several `steps` as those of `sgd_steps`, all on the first batch."""
    validate.at_least_one(steps=steps)

    def run(server, state, batches, keys):
        batch, value_of = _first(batches), stepwise(loss, keys)

        def on_first(model, step):
            return value_of(model, batch, step)

        return _walked(on_first, tx, server.params, (jnp.arange(steps),), state)

    return Local(run)


def one_gradient(loss: Loss) -> Local:
    """The gradient of `loss` on the first batch, instead of a difference of models."""

    def run(server, state, batches, keys):
        model, value_of = server.params, stepwise(loss, keys)
        value, grads, after = _gradient(value_of)(model, _first(batches), 0)
        moved = ()
        if isinstance(model, Stateful):
            moved = jax.tree.map(jnp.subtract, model.state, after)
        return Work(like_model(model, grads, moved), state, {"loss": value})

    return Local(run)


def gradient_pair(loss: Loss, previous: Callable[[Server], Tree]) -> Local:
    """(gradient, its change since the last round), both on the first batch, for MARINA.

    Args:
      previous: `(server) -> params`, the model of the last round, from what clients
        fetch with this one.
    """

    def run(server, state, batches, keys):
        batch, value_of = _first(batches), stepwise(loss, keys)
        value, now = jax.value_and_grad(value_of)(server.params, batch, 0)
        before = jax.grad(value_of)(previous(server), batch, 0)
        change = jax.tree.map(jnp.subtract, now, before)
        return Work((now, change), state, {"loss": value})

    return Local(run)


def tracked_steps(
    loss: Loss, *, rate: jax.typing.ArrayLike, gain: jax.typing.ArrayLike
) -> Local:
    """Steps along gradient - c, with a control variate c for other clients' data.

    FedSKETCHGATE, Algorithm 6: after the round, c -= gain (Phi - Phi_own), where Phi is
    the estimate that all clients received and Phi_own that of the client's message.

    Control variates keep information across rounds. They grow without bound if a
    client's loss is more curved than 2/eta (with more than one step), or if the
    relative error of Phi_own is above 1/(gain eta tau).

    Args:
      rate: the step size eta.
      gain: the factor of the changes of c: 1/(eta tau) exactly removes the factor in
        the update; the paper prints 1/tau.
    """

    def run(server, variate, batches, keys):
        slices = _numbered(as_arrays(batches))
        return _corrected(stepwise(loss, keys), rate, server.params, slices, variate)

    def finish(variate, delivery):
        return jax.tree.map(
            lambda c, mean, own: c - gain * (mean - own),
            variate,
            trees.trained(delivery.estimate),
            trees.trained(delivery.own),
        )

    return Local(run, _zeros, finish)


def control_variates(
    loss: Loss,
    tx: optax.GradientTransformation,
    *,
    rate: jax.typing.ArrayLike,
    steps: int | None,
) -> Local:
    """Steps of an optimizer, each followed by rate (c_i - c).

    SCAFFOLD, its second option: c_i becomes c_i - c + (x_0 - x_K) / (K eta), for the
    step size eta, `rate`, and K `steps`, each on a batch. The channel's memory at the
    server is c. Without `steps`, K is the client's own number of batches, and its
    update is a pair: x_0 - x_K, and the same over K eta.
    """

    def run(server, variate, batches, keys):
        slices = _numbered(batches)
        count = slices.steps if isinstance(slices, Passes) else len(slices[1])
        if steps is not None and (isinstance(slices, Passes) or count != steps):
            own = "None, with epochs" if isinstance(slices, Passes) else count
            msg = f"Expected steps={own}, the batches of a client, got {steps}."
            raise ValueError(msg)
        correction = jax.tree.map(jnp.subtract, variate, server.memory)

        def corrected(updates, params):
            del params
            return jax.tree.map(lambda u, c: u + rate * c, updates, correction)

        both = optax.chain(tx, optax.stateless(corrected))
        work = _walked(stepwise(loss, keys), both, server.params, slices, correction)
        if steps is not None:
            return work
        scale = rate * jnp.maximum(count, 1)
        mean = jax.tree.map(lambda moved: moved / scale, work.update)
        return work._replace(update=(work.update, mean))

    def finish(correction, delivery):
        scale = 1 if steps is None else steps * rate
        return jax.tree.map(
            lambda c, moved: c + moved / scale,
            correction,
            trees.trained(delivery.own),
        )

    return Local(run, _zeros, finish)


def _corrected(value_of: Stepwise, rate, start: Tree, slices: Any, correction) -> Work:
    """Returns the work of steps along gradient - correction, which is the state."""

    def change(grads, params):
        del params
        return jax.tree.map(jnp.subtract, grads, correction)

    return _walked(value_of, optax.sgd(rate), start, slices, correction, change)


def _walked(
    value_of: Callable[..., Any],
    tx: optax.GradientTransformation,
    start: Tree,
    slices: Any,
    state: Any,
    change: Callable[[Tree, Tree], Tree] = lambda grads, params: grads,
) -> Work:
    """Returns the work of one optimizer step on each slice, with the first loss.

    Slices are further arguments of `value_of`, along a leading axis, or `Passes`. The
    optimizer gets the gradients that `change(gradient, parameters)` returns.
    """

    def step(carry, arguments):
        model, opt = carry
        value, grads, state = _gradient(value_of)(model, *arguments)
        params = trees.trained(model)
        updates, opt = tx.update(change(grads, params), opt, params)
        params = optax.apply_updates(params, updates)
        return (like_model(model, params, state), opt), value

    def turn(number, carry):
        begun, value, batch = carry
        begun, other = step(begun, (batch, number))
        value = jnp.where(number == 0, other.astype(value.dtype), value)
        # The next batch is carried, since XLA for CPUs would make one that is read in
        # the same turn again for each of its readers: ten times as slow.
        return begun, value, slices.at(number + 1)

    first = start, tx.init(trees.trained(start))
    if isinstance(slices, Passes):  # each client for as many steps as it has
        none = varying_like(jnp.float32(0), jax.tree.leaves(start)[0])
        begin = first, none, slices.at(0)
        (end, _), loss, _ = jax.lax.fori_loop(0, slices.steps, turn, begin)
    else:
        (end, _), values = jax.lax.scan(step, first, slices)
        loss = values[0]
    update = jax.tree.map(jnp.subtract, start, end)
    return Work(update, state, {"loss": loss})


def _numbered(batches) -> Any:
    """Returns the batches with the number of each; passes, which count, as they are."""
    if isinstance(batches, Passes):
        return batches
    return batches, jnp.arange(jax.tree.leaves(batches)[0].shape[0])


def as_arrays(batches: Any) -> Any:
    """Returns batches, of which there are equally many for all clients, or raises."""
    if isinstance(batches, Passes):
        msg = "Expected epochs=0 with an algorithm whose clients all take equally many "
        raise ValueError(msg + f"steps or gradients, got epochs={batches.epochs}.")
    return batches


def _first(batches):
    return jax.tree.map(lambda batch: batch[0], as_arrays(batches))


def _zeros(model):
    return jax.tree.map(jnp.zeros_like, trees.trained(model))
