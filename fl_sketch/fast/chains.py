"""A convolution and the pool behind it, as one.

Between the two there may be steps that keep the order of numbers: a bias, a relu, moves
of axes. These are done to the maxima. Nothing else may read what is between.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal
from jax.extend.core import primitives as of_jax

from fl_sketch.fast.layers import Axes, Read, avals, axes_of, convolution, pooled_axes

RISING = (of_jax.tanh_p, of_jax.logistic_p)  # besides relu
MOVES = (
    of_jax.reshape_p,
    of_jax.squeeze_p,
    of_jax.transpose_p,
    of_jax.broadcast_in_dim_p,
)

INSIDE = {of_jax.jit_p: "jaxpr", of_jax.custom_jvp_call_p: "call_jaxpr"}
SPREADING = ("broadcast_in_dim", "pvary", "pcast")  # the same number in many places


class Step(NamedTuple):
    """A step between a convolution and its pool.

    Attributes:
      run: `(maxima, read) -> maxima`.
      axes: the axes of rows and columns after it.
    """

    run: Callable[[jax.Array, Read], jax.Array]
    axes: Axes


class Chain(NamedTuple):
    """A convolution with its pool.

    Attributes:
      first: the equation of the convolution.
      steps: what is between the two.
      inside: places of all equations of the chain but the pool's.
      last: the place of the pool's equation.
    """

    first: JaxprEqn
    steps: tuple[Step, ...]
    inside: tuple[int, ...]
    last: int

    def run(self, read: Read) -> jax.Array:
        """Returns the output of the pool."""
        maxima = convolution(self.first, read, pool=True)
        for step in self.steps:
            maxima = step.run(maxima, read)
        return maxima


class Graph(NamedTuple):
    """Who makes and who reads the variables of a traced function.

    Attributes:
      makers: the equation that makes a variable.
      readers: the place and the equation that read it, the last of them.
      times: how often it is read.
    """

    makers: dict[Any, JaxprEqn]
    readers: dict[Any, tuple[int, JaxprEqn]]
    times: Counter

    def only_reader(self, variable: Any) -> tuple[int, JaxprEqn] | None:
        """Returns the place and the equation that alone reads a variable, once."""
        return self.readers.get(variable) if self.times[variable] == 1 else None

    def chain(self, place: int, first: JaxprEqn) -> Chain | None:
        """Returns the chain of a convolution's equation, if a pool ends it."""
        if set(first.params["window_strides"]) != {1}:
            return None
        variable, axes = first.outvars[0], axes_of(first)
        inside, steps = [place], []
        while (found := self.only_reader(variable)) is not None:
            place, eqn = found
            if pooled_axes(eqn) == axes:
                return Chain(first, tuple(steps), tuple(inside), place)
            step = self.step(eqn, variable, axes)
            if step is None:
                return None
            inside.append(place)
            steps.append(step)
            variable, axes = eqn.outvars[0], step.axes
        return None

    def step(self, eqn: JaxprEqn, variable: Any, axes: Axes) -> Step | None:
        """Returns an equation as a step, if it keeps the order within windows."""
        if eqn.primitive in MOVES and len(eqn.invars) == 1:
            return _move(eqn, axes)
        if eqn.primitive in RISING:
            params = eqn.params
            return Step(lambda y, read: eqn.primitive.bind(y, **params), axes)
        if eqn.primitive is of_jax.custom_jvp_call_p and _is_relu(eqn):
            return Step(lambda y, read: jax.nn.relu(y), axes)
        if eqn.primitive in (of_jax.add_p, of_jax.max_p):
            (other,) = (a for a in eqn.invars if a is not variable)
            of_maxima = self.same_in_windows(other, axes)
            if of_maxima is None:
                return None

            def run(y, read):
                return eqn.primitive.bind(y, of_maxima(y, read), **eqn.params)

            return Step(run, axes)
        return None

    def same_in_windows(self, atom: Any, axes: Axes) -> Callable | None:
        """Returns `(maxima, read) -> operand` of one that is the same in all places."""
        shape = atom.aval.shape
        if not shape or all(shape[axis] == 1 for axis in axes):
            return lambda y, read: read(atom)
        maker = self.makers.get(atom) if _varies(atom) else None
        if maker is None or maker.primitive is not of_jax.broadcast_in_dim_p:
            return None
        (source, *more), to = maker.invars, maker.params["broadcast_dimensions"]
        sizes = dict(zip(to, avals(maker)[0].shape, strict=True))
        if more or any(sizes.get(axis, 1) != 1 for axis in axes):
            return None

        def of_maxima(y, read):
            return lax.broadcast_in_dim(read(source), y.shape, to)

        return of_maxima


def graph_of(jaxpr: Jaxpr) -> Graph:
    """Returns the graph of a traced function, whose results count as read."""
    graph = Graph({}, {}, Counter(v for v in jaxpr.outvars if _varies(v)))
    for place, eqn in enumerate(jaxpr.eqns):
        graph.makers.update(dict.fromkeys(eqn.outvars, eqn))
        for atom in filter(_varies, eqn.invars):
            graph.readers[atom] = place, eqn
            graph.times[atom] += 1
    return graph


def _varies(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def _move(eqn: JaxprEqn, axes: Axes) -> Step | None:
    """Returns a move of axes as a step: sizes stay, axes of size one come and go."""
    old, new = (aval.shape for aval in avals(eqn)[:: len(eqn.invars)])
    if eqn.primitive is of_jax.transpose_p:
        order = eqn.params["permutation"]
        high, wide = (order.index(axis) for axis in axes)
        return Step(lambda y, read: lax.transpose(y, order), (high, wide))
    before, after = ([a for a, n in enumerate(s) if n != 1] for s in (old, new))
    if [old[a] for a in before] != [new[a] for a in after]:
        return None
    high, wide = (after[before.index(axis)] for axis in axes)

    def run(y, read):
        del read
        sizes = [*new]
        sizes[high], sizes[wide] = (y.shape[axis] for axis in axes)
        return y.reshape(sizes)

    return Step(run, (high, wide))


def _is_relu(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is jax's relu, its derivative included."""

    def same(x):
        return eqn.primitive.bind(x, **eqn.primitive.get_bind_params(eqn.params))[0]

    (x, *more) = avals(eqn)
    return len(more) == 1 and _with_derivative(same, x) == _of_relu()


@functools.cache
def _of_relu() -> list[str]:
    return _with_derivative(jax.nn.relu, jax.ShapeDtypeStruct((), jnp.float32))


def _with_derivative(function: Callable, x: Any) -> list[str]:
    """Returns terms for a function of one array, and for its derivative."""
    forwards = jax.make_jaxpr(lambda x, t: jax.jvp(function, (x,), (t,)))(x, x)
    return _terms(forwards.jaxpr, ["x", "t"])


def _terms(jaxpr: Jaxpr, given: Sequence[str]) -> list[str]:
    """Returns the results as terms of primitives, without shapes and broadcasts."""
    known = dict(zip(jaxpr.invars, given, strict=True))

    def term(atom):
        return (
            known.get(atom, "?") if _varies(atom) else str(np.asarray(atom.val).item())
        )

    for eqn in jaxpr.eqns:
        terms, inner = [*map(term, eqn.invars)], INSIDE.get(eqn.primitive)
        if inner is not None:
            found = _terms(eqn.params[inner].jaxpr, terms)
        elif len(terms) == 1 and eqn.primitive.name in SPREADING:
            found = terms
        else:
            found = [f"{eqn.primitive}({', '.join(terms)})"] * len(eqn.outvars)
        known.update(zip(eqn.outvars, found, strict=True))
    return [*map(term, jaxpr.outvars)]
