"""Every sketch operator in one list: a new operator is a new row, and is tested."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
import pytest

from fl_sketch import sketch
from fl_sketch.core import wire
from fl_sketch.core.protocols import Field, Sketch
from tests.oracles import closed_forms
from tests.quick import some_fast


@dataclasses.dataclass(frozen=True)
class Case:
    """One operator: how to build it with about b numbers, and its exact error."""

    make: Callable[[int], Sketch]
    error: Callable[[np.ndarray, int], float]  # (x, b) -> E|R'Rx - x|^2
    at_most_d: bool = False  # cannot send more numbers than the vector has


OPERATORS = {
    "gaussian": Case(sketch.gaussian, closed_forms.gaussian),
    "ams": Case(sketch.ams, closed_forms.ams),
    "srht": Case(sketch.srht, closed_forms.srht, at_most_d=True),
    "count_sketch": Case(sketch.count_sketch, closed_forms.count_sketch(rows=1)),
    "count_sketch_x5": Case(
        lambda b: sketch.count_sketch(b, rows=5), closed_forms.count_sketch(rows=5)
    ),
    "sparse_embedding": Case(
        lambda b: sketch.sparse_embedding(b, min(b, 4)),
        closed_forms.sparse_embedding(nonzeros=4),
    ),
    "uniform_sampling": Case(
        sketch.uniform_sampling, closed_forms.uniform_sampling, at_most_d=True
    ),
    "identity": Case(lambda b: sketch.identity(), closed_forms.identity),
}
SLOW = ("ams", "count_sketch")  # of the code of others, with other words or rows
every_operator = pytest.mark.parametrize(
    "name", some_fast(OPERATORS, {*OPERATORS} - {*SLOW})
)


def encoded(message) -> bytes:
    """Returns the bytes of a message of floats, from which it comes back to the bit."""
    leaves = [np.ravel(part) for part in jax.tree.leaves(message)]
    fields = [Field(leaf.size, wire.FLOAT_BITS, "float") for leaf in leaves]
    data = wire.encode(fields, leaves)
    for sent, received in zip(leaves, wire.decode(fields, data), strict=True):
        assert received.tobytes() == sent.tobytes()
    return data


def build(name: str, b: int, d: int) -> Sketch:
    """Returns the operator for vectors of length d."""
    case = OPERATORS[name]
    return case.make(min(b, d) if case.at_most_d else b)
