"""Optimizers by their names in optax, for a client's local steps."""

import ast
import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax

from fl_sketch.core import plugins, validate

Optimizer = Callable[[Any], optax.GradientTransformation]
# optax's functions from a rate to an optimizer, but for one whose noise is drawn from a
# seed of its own, and so the same for all clients.
NAMES = tuple(
    name
    for name, function in inspect.getmembers(optax, inspect.isfunction)
    if next(iter(inspect.signature(function).parameters), "") == "learning_rate"
    and not name.startswith(("_", "scale_by"))
    and name != "noisy_sgd"
)


def optimizer(text: str) -> Optimizer:
    """Returns a function from a rate to an optimizer.

    Args:
      text: a name of optax, with options as in "adamw(b1=0.8, weight_decay=0.01)", or
        FILE.py:NAME, a function of the rate.
    """
    if plugins.named(text):
        make = plugins.load(text)
    else:
        name, options = _parsed(text)
        validate.one_of(NAMES, optimizer=name)
        function = getattr(optax, name)

        def make(rate):
            return function(rate, **options)

    def first_step(x):
        tx = make(0.1)
        return tx.update(x, tx.init(x), x)

    try:
        jax.eval_shape(first_step, jax.ShapeDtypeStruct((2,), "float32"))
    except Exception as error:  # whatever a user's function does
        got = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        msg = f"Expected {text} to make an optimizer of a rate, got {got}"
        raise TypeError(msg) from None
    return make


def decoupled(make: Optimizer, decay: float | jax.Array) -> Optimizer:
    """Returns an optimizer of a rate with weight decay: steps of -rate * decay * x."""
    if validate.is_off(decay):
        return make
    return lambda rate: optax.chain(
        make(rate), optax.add_decayed_weights(-rate * decay)
    )


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the options of "name" or "name(option=value, ...)"."""
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and not node.args:
            options = {str(w.arg): ast.literal_eval(w.value) for w in node.keywords}
            return ast.unparse(node.func), options
    except (SyntaxError, ValueError):
        pass
    msg = f"Expected a name of optax, as adamw(b1=0.8), or FILE.py:NAME, got {text!r}."
    raise ValueError(msg)
