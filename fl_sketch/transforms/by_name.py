"""Optimizers by their names in optax, for a client's local steps.

>>> import jax.numpy as jnp
>>> tx = optimizer("sgd(momentum=0.5)")(0.1)
>>> state = tx.init(jnp.zeros(()))
>>> first, state = tx.update(jnp.float32(1), state)
>>> second, state = tx.update(jnp.float32(1), state)
>>> f"{first:.2f}", f"{second:.2f}"
('-0.10', '-0.15')
"""

import ast
import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax

from fl_sketch.core import plugins, validate

Optimizer = Callable[[Any], optax.GradientTransformation]
RATE = "learning_rate"
FIRST = 0.1  # a rate to try an optimizer with


def _known() -> tuple[str, ...]:
    """Returns the names of optax's functions from a rate to an optimizer."""

    def makes_optimizer(function: Any) -> bool:
        if not inspect.isfunction(function):
            return False
        return next(iter(inspect.signature(function).parameters), "") == RATE

    public = [name for name in dir(optax) if not name.startswith(("_", "scale_by"))]
    return tuple(name for name in public if makes_optimizer(getattr(optax, name)))


# Their noise is drawn from a seed of their own, and so the same for all clients.
DRAWING = ("noisy_sgd",)
NAMES = tuple(name for name in _known() if name not in DRAWING)


def optimizer(text: str) -> Optimizer:
    """Returns a function from a rate to an optimizer.

    Args:
      text: a name of optax, with options as in "adamw(b1=0.8, weight_decay=0.01)", or
        FILE.py:NAME, a function of the rate.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line, for anything else.
    """
    if plugins.named(text):
        make = plugins.load(text)
    else:
        name, options = _parsed(text)
        validate.one_of(NAMES, optimizer=name)
        make = _with_options(getattr(optax, name), text, options)
    try:
        jax.eval_shape(lambda x: _tried(make, x), jax.ShapeDtypeStruct((2,), "float32"))
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


def _tried(make: Optimizer, x: jax.Array) -> optax.Updates:
    """Returns a step of an optimizer on the gradient `x` at `x`."""
    tx = make(FIRST)
    return tx.update(x, tx.init(x), x)[0]


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
    msg = (
        "Expected optimizer to be a name of optax, such as sgd or adamw(b1=0.8), or "
        f"FILE.py:NAME without options, got optimizer={text!r}."
    )
    raise ValueError(msg)


def _with_options(function, text: str, options: dict[str, Any]) -> Optimizer:
    legal = tuple(name for name in inspect.signature(function).parameters)[1:]
    for option in options:
        if option not in legal:
            msg = f"Expected options among {', '.join(legal)}, got {option} in "
            msg += f"optimizer={text!r}.{validate.nearest(option, legal)}"
            raise ValueError(msg)
    return lambda rate: function(rate, **options)
