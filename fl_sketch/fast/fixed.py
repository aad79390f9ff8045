"""A function of which some arguments stay, as the batch of all steps of a client."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Literal, Var

from fl_sketch.fast.plan import evaluated


def with_fixed(function: Callable, fixed: Any, *examples: Any) -> Callable:
    """Returns `function(fixed, ...)` as a function of its other arguments.

    What depends on `fixed` alone is computed here and once. A compiler does not take it
    out of a loop if it is larger than `fixed` is, as floats are that were bytes.

    >>> import jax.numpy as jnp
    >>> step = with_fixed(lambda x, y: jnp.sin(x) * y, jnp.ones(3), 1.0)
    >>> "sin" in str(jax.make_jaxpr(step)(1.0))
    False

    Args:
      function: a function of trees of arrays.
      *examples: arguments like those that will be given, or their shapes.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(fixed, *examples)
    jaxpr, given = closed.jaxpr, jax.tree.leaves(fixed)
    own = jaxpr.invars[: len(given)]
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= zip(own, given, strict=True)
    ours, later = set(own), []
    for eqn in jaxpr.eqns:
        names = [atom for atom in eqn.invars if isinstance(atom, Var)]
        if eqn.effects or ours.isdisjoint(names) or not values.keys() >= set(names):
            later.append(eqn)
            continue
        values |= zip(eqn.outvars, evaluated(eqn, _reading(values)), strict=True)
        ours.update(eqn.outvars)

    def rest(*arguments):
        flat = jax.tree.leaves(arguments)
        now = values | dict(zip(jaxpr.invars[len(given) :], flat, strict=True))
        for eqn in later:
            now |= zip(eqn.outvars, evaluated(eqn, _reading(now)), strict=True)
        results = map(_reading(now), jaxpr.outvars)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return rest


def _reading(values: dict[Var, Any]) -> Callable:
    return lambda atom: atom.val if isinstance(atom, Literal) else values[atom]
