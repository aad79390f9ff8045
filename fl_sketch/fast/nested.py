"""Functions inside a traced function: how each kind is called again with others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core import primitives as of_jax

AS_WRITTEN = "as_written"  # the name of a jitted function that is left alone
Flat = Callable[..., Sequence[Any]]  # of arrays
Params = Mapping[str, Any]  # of an equation


class Kind(NamedTuple):
    """A kind of equation with functions inside.

    Attributes:
      functions: the names of parameters that hold them.
      call: `(parameters, *functions) -> function` of the equation's operands.
      is_known: whether parameters have nothing that `call` would lose.
    """

    functions: tuple[str, ...]
    call: Callable[..., Flat]
    is_known: Callable[[Params], bool] = lambda params: True


def _jit(params: Params, function: Flat) -> Flat:
    def named(*operands):
        return function(*operands)

    named.__name__ = params["name"]
    return jax.jit(named, keep_unused=params["keep_unused"], inline=params["inline"])


def _jit_is_known(params: Params) -> bool:
    """Returns whether a jitted function says nothing of devices or of its compiler."""
    placed = (*params["in_shardings"], *params["out_shardings"])
    return (
        params["name"] != AS_WRITTEN
        and all(type(one).__name__ == "UnspecifiedValue" for one in placed)
        and not any((*params["in_layouts"], *params["out_layouts"]))
        and not any(params["donated_invars"])
        and not params["compiler_options_kvs"]
    )


def _call(params: Params, function: Flat) -> Flat:
    del params
    return function


def _checkpoint(params: Params, function: Flat) -> Flat:
    options = {name: params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(function, **options)


def _scan(params: Params, function: Flat) -> Flat:
    fixed, carried = params["num_consts"], params["num_carry"]

    def call(*operands):
        consts, start, xs = _cut(operands, fixed, carried)

        def step(carry, x):
            results = function(*consts, *carry, *x)
            carry, y = _cut(results, carried)
            return carry, y

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        end, ys = lax.scan(step, start, xs, **options)
        return [*end, *ys]

    return call


def _while(params: Params, test: Flat, body: Flat) -> Flat:
    def call(*operands):
        sizes = params["cond_nconsts"], params["body_nconsts"]
        of_test, of_body, start = _cut(operands, *sizes)
        return lax.while_loop(
            lambda carry: test(*of_test, *carry)[0],
            lambda carry: tuple(body(*of_body, *carry)),
            start,
        )

    return call


def _cond(params: Params, *branches: Flat) -> Flat:
    del params
    return lambda index, *operands: lax.switch(index, branches, *operands)


def _cond_is_known(params: Params) -> bool:
    """Returns whether branches are not those of platforms, which chose their forms."""
    return params.get("branches_platforms") is None


def _cut(values: Sequence[Any], *sizes: int) -> list[tuple[Any, ...]]:
    """Returns pieces of these sizes, and then the rest."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(tuple(values[start : start + size]))
        start += size
    return [*pieces, tuple(values[start:])]


KINDS: dict[Primitive, Kind] = {
    of_jax.jit_p: Kind(("jaxpr",), _jit, _jit_is_known),
    of_jax.closed_call_p: Kind(("call_jaxpr",), _call),
    of_jax.call_p: Kind(("call_jaxpr",), _call),
    of_jax.remat_p: Kind(
        ("jaxpr",), _checkpoint, lambda params: not params["differentiated"]
    ),
    of_jax.scan_p: Kind(("jaxpr",), _scan),
    of_jax.while_p: Kind(("cond_jaxpr", "body_jaxpr"), _while),
    of_jax.cond_p: Kind(("branches",), _cond, _cond_is_known),
}
