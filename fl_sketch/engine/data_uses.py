"""What the local work of a client does with its data, found in its traced program.

Two mistakes show there before anything runs: labels that are no places among the
numbers of a model, and arrays of the model that no client's data reach.

>>> import jax.numpy as jnp
>>> def loss(logits, labels):
...     return -jnp.take_along_axis(logits, labels[:, None], axis=1).mean()
>>> shapes = jnp.zeros((5, 3)), jnp.zeros(5, int)
>>> places(jax.make_jaxpr(loss)(*shapes).jaxpr, {1: 0})
[Place(leaf=0, count=3, refused=True)]
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core

from fl_sketch.core import trees
from fl_sketch.core.protocols import Work

# Operations after which an array still has the same integers.
SAME = (
    "broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "reshape",
    "slice", "squeeze", "transpose",
)  # fmt: skip


class Place(NamedTuple):
    """Integers of the data that the loss takes as places among other numbers.

    Attributes:
      leaf: the number of the array in the examples.
      count: how many numbers there are.
      refused: whether a place beyond them is a mistake; else it counts as none, as in a
        one-hot code.
    """

    leaf: int
    count: int
    refused: bool


class DataUses(NamedTuple):
    """What local work does with the data.

    Attributes:
      places: the integers that it takes as places.
      untouched: names of the model's arrays whose update does not depend on the data.
    """

    places: tuple[Place, ...] = ()
    untouched: tuple[str, ...] = ()


class _Held(NamedTuple):
    """The integers of a leaf; `moved`: some number was added to them."""

    leaf: int
    moved: bool = False


def uses_of(program: Any, arguments: tuple[Any, ...], work: Work) -> DataUses:
    """Returns what local work does with its batches.

    Args:
      program: its closed program.
      arguments: those of `Local.run`: server, state, batches and keys.
      work: the shapes of what it returns.
    """
    server, state, batches, keys = (len(jax.tree.leaves(one)) for one in arguments)
    first = server + state
    data = range(first, first + batches)
    found = places(program.jaxpr, {number: number - first for number in data})
    inputs = [number in data for number in range(first + batches + keys)]
    names = [name for name, _ in trees.named_leaves(trees.trained(arguments[0].params))]
    reached = jax.tree.unflatten(jax.tree.structure(work), reach(program.jaxpr, inputs))
    flags = jax.tree.leaves(trees.trained(reached.update))
    if len(flags) % len(names):  # an update of another form than the model
        return DataUses(tuple(dict.fromkeys(found)))
    # Of a pair of updates, either may reach an array.
    parts = [flags[place :: len(names)] for place in range(len(names))]
    untouched = [n for n, part in zip(names, parts, strict=True) if not any(part)]
    return DataUses(tuple(dict.fromkeys(found)), tuple(untouched))


def reach(program: Any, inputs: Sequence[bool]) -> list[bool]:
    """Returns for each result of a program whether it depends on the marked inputs.

    It never misses a dependence. Of loops of unknown length and of branches, all
    results depend on all inputs.
    """
    marked = {v for v, mark in zip(program.invars, inputs, strict=True) if mark}

    def is_marked(value: Any) -> bool:
        return isinstance(value, core.Var) and value in marked

    for equation in program.eqns:
        flags = [is_marked(value) for value in equation.invars]
        inner = _within(equation)
        if inner is None:
            results = [any(flags)] * len(equation.outvars)
        elif equation.primitive.name == "scan":
            results = _reach_of_loop(equation, inner, flags)
        else:
            results = reach(inner, flags)
        marked |= {v for v, mark in zip(equation.outvars, results, strict=True) if mark}
    return [is_marked(value) for value in program.outvars]


def _reach_of_loop(equation: Any, body: Any, flags: list[bool]) -> list[bool]:
    first, count = equation.params["num_consts"], equation.params["num_carry"]
    while True:
        results = reach(body, flags)
        carry = flags[first : first + count]
        after = [old or new for old, new in zip(carry, results, strict=False)]
        if after == carry:
            return results
        flags = flags[:first] + after + flags[first + count :]


def places(program: Any, leaves: Mapping[int, int]) -> list[Place]:
    """Returns the integers that a program takes as places.

    Only those count that it takes as they are. A negative place counts from the end, as
    numpy's do.

    Args:
      program: the program.
      leaves: from the number of an input to the number of a leaf of the examples.
    """
    held = {program.invars[number]: _Held(leaf) for number, leaf in leaves.items()}
    return _followed(program, held)


def _followed(program: Any, held: dict[Any, _Held]) -> list[Place]:
    """Returns the places of a program, and adds to `held` what its values hold."""
    found, counts = list[Place](), dict[Any, int]()
    for equation in program.eqns:
        if not equation.outvars:  # a callback
            continue
        known = [held.get(v) for v in equation.invars if isinstance(v, core.Var)]
        name, result = equation.primitive.name, equation.outvars[0]
        if name == "iota":
            counts[result] = equation.params["shape"][equation.params["dimension"]]
        elif name == "gather" and (place := _gathered(equation, held)):
            found.append(place)
        elif name == "eq":
            found += _compared(equation, held, counts)
        elif inner := _within(equation):
            found += _entered(equation, inner, held)
        elif after := _kept(name, known):
            held[result] = after
    return found


def _kept(name: str, known: list[_Held | None]) -> _Held | None:
    """Returns what an operation's result holds, of what its operands hold."""
    if name in SAME and known:
        return known[0]
    if name == "add" and len(known) == 1 and known[0]:  # of a constant
        return known[0]._replace(moved=True)
    if name == "select_n":  # a negative place is moved by the number of places
        cases = known[-2:]
        leaves = {case and case.leaf for case in cases}
        if len(leaves) == 1 and (first := cases[0]):
            return first._replace(moved=all(case and case.moved for case in cases))
    return None


def _gathered(equation: Any, held: Mapping[Any, _Held]) -> Place | None:
    numbers, index = equation.invars
    axes = equation.params["dimension_numbers"].start_index_map
    mine = held.get(index) if isinstance(index, core.Var) else None
    if not mine or mine.moved or len(axes) != 1:
        return None
    return Place(mine.leaf, numbers.aval.shape[axes[0]], refused=True)


def _compared(equation: Any, held: Mapping[Any, _Held], counts) -> list[Place]:
    """Returns the place of a one-hot code, which compares with 0, 1, 2, ..."""
    pair = [v for v in equation.invars if isinstance(v, core.Var)]
    mine = [held[v] for v in pair if v in held]
    count = [counts[v] for v in pair if v in counts]
    if mine and count and not mine[0].moved:
        return [Place(mine[0].leaf, count[0], refused=False)]
    return []


def _within(equation: Any) -> Any:
    """Returns the one program within an equation that has its inputs; None: none."""
    if equation.primitive.name == "while":
        return None
    programs = [
        getattr(part, "jaxpr", part)
        for part in equation.params.values()
        if isinstance(part, core.ClosedJaxpr | core.Jaxpr)
    ]
    fitting = [p for p in programs if len(p.invars) == len(equation.invars)]
    return fitting[0] if len(fitting) == 1 else None


def _entered(equation: Any, inner: Any, held: dict[Any, _Held]) -> list[Place]:
    """Returns the places of a program within an equation."""
    loop = equation.primitive.name == "scan"
    first = equation.params["num_consts"] if loop else 0
    carried = range(first, first + (equation.params["num_carry"] if loop else 0))
    own = {
        variable: held[value]
        for number, (variable, value) in enumerate(
            zip(inner.invars, equation.invars, strict=True)
        )
        if isinstance(value, core.Var) and value in held and number not in carried
    }
    found = _followed(inner, own)
    if not loop:
        for variable, value in zip(equation.outvars, inner.outvars, strict=True):
            if isinstance(value, core.Var) and value in own:
                held[variable] = own[value]
    return found
