"""Which equations of a traced function are computed in another form, and how.

Functions inside a function have plans of their own. Whatever has a derivative written
by hand stays as it is, and so does all that is not known here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.extend import source_info_util as sources
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.extend.core import primitives as of_jax

from fl_sketch.fast import layers
from fl_sketch.fast.chains import Graph, graph_of
from fl_sketch.fast.nested import KINDS, Flat, Kind, Params

Compute = Callable[[layers.Read], Sequence[Any]]  # the results of an equation
Known = dict[int, Flat | None]  # functions by the identity of what was traced


class Plan(NamedTuple):
    """The equations of a function that are computed in another way.

    Attributes:
      jaxpr: the function.
      computed: how, by the place of an equation.
      inside: places of equations that are part of a later one.
    """

    jaxpr: Jaxpr
    computed: dict[int, Compute]
    inside: set[int]

    def run(self, consts: Sequence[Any], *arguments: Any) -> list[Any]:
        """Returns the function's results for flat arguments."""
        names = (*self.jaxpr.constvars, *self.jaxpr.invars)
        values = dict(zip(names, (*consts, *arguments), strict=True))

        def read(atom):
            return atom.val if isinstance(atom, Literal) else values[atom]

        for place, eqn in enumerate(self.jaxpr.eqns):
            if place not in self.inside:
                results = evaluated(eqn, read, self.computed.get(place))
                values |= zip(eqn.outvars, results, strict=True)
        return [read(atom) for atom in self.jaxpr.outvars]


def planned(closed: ClosedJaxpr, known: Known | None = None) -> Flat | None:
    """Returns a function of flat arguments, computed as planned; None: as it is."""
    plan, graph = Plan(closed.jaxpr, {}, set()), graph_of(closed.jaxpr)
    known = {} if known is None else known
    for place, eqn in enumerate(closed.jaxpr.eqns):
        if place not in plan.computed:
            _add(plan, place, eqn, graph, known)
    return (lambda *flat: plan.run(closed.consts, *flat)) if plan.computed else None


def _add(plan: Plan, place: int, eqn: JaxprEqn, graph: Graph, known: Known) -> None:
    """Adds an equation to a plan, with those behind it if it begins a chain."""
    compute = None
    if layers.is_convolution(eqn):
        chain, compute = graph.chain(place, eqn), _by(layers.convolution, eqn)
        if chain is not None:
            plan.inside.update(chain.inside)
            place, compute = chain.last, lambda read: [chain.run(read)]
    elif layers.is_depthwise(eqn):
        compute = _by(layers.of_channels, eqn)
    elif layers.pooled_axes(eqn):
        compute = _by(layers.pool, eqn)
    elif layers.is_dense(eqn):
        compute = _by(layers.dense, eqn)
    elif eqn.primitive in KINDS:
        compute = _of_nested(eqn, known)
    if compute is not None:
        plan.computed[place] = compute


def _by(form: Callable[[JaxprEqn, layers.Read], Any], eqn: JaxprEqn) -> Compute:
    return lambda read: [form(eqn, read)]


def evaluated(
    eqn: JaxprEqn, read: layers.Read, compute: Compute | None = None
) -> Sequence[Any]:
    """Returns the results of an equation, computed as it was traced or otherwise."""
    source, stack = eqn.source_info, sources.current_name_stack()
    stack += source.name_stack
    with sources.user_context(source.traceback, name_stack=stack), eqn.ctx.manager:
        if compute is not None:
            return compute(read)
        params = eqn.primitive.get_bind_params(eqn.params)
        results = eqn.primitive.bind(*map(read, eqn.invars), **params)
        return results if eqn.primitive.multiple_results else [results]


def _of_nested(eqn: JaxprEqn, known: Known) -> Compute | None:
    """Returns how functions inside an equation are played; None: as they are."""
    kind, params = KINDS[eqn.primitive], eqn.params
    if not kind.is_known(params):
        return None
    given = [params[name] for name in kind.functions]
    key = id(given[0]) if eqn.primitive is of_jax.jit_p else id(eqn)
    if key not in known:
        known[key] = _played(kind, params, [*map(_closed, _flat(given))], known)
    play = known[key]
    return None if play is None else lambda read: play(*map(read, eqn.invars))


def _played(
    kind: Kind, params: Params, traced: Sequence[ClosedJaxpr], known: Known
) -> Flat | None:
    """Returns what an equation computes, if any of its functions has a plan."""
    functions = [planned(closed, known) for closed in traced]
    if not any(functions):
        return None
    pairs = zip(functions, traced, strict=True)
    return kind.call(params, *(new or jaxpr_as_fun(old) for new, old in pairs))


def _flat(given: Sequence[Any]) -> list[Any]:
    return [one for of in given for one in (of if isinstance(of, tuple) else (of,))]


def _closed(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())
