"""Every sketch operator in one list: a new operator is a new row, and is tested."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from fl_sketch import sketch
from fl_sketch.core import wire
from fl_sketch.core.protocols import Field, Sketch
from tests.oracles import closed_forms


@dataclasses.dataclass(frozen=True)
class Case:
    """One operator: how to build it with about b numbers, and its exact error."""

    make: Callable[[int], Sketch]
    error: Callable[[np.ndarray, int], float]  # (x, b) -> E|R'Rx - x|^2
    at_most_d: bool = False  # cannot send more numbers than the vector has


def hashed(rows, **options):
    return lambda b: sketch.count_sketch(b, rows, **options)


OPERATORS = {
    "gaussian": Case(sketch.gaussian, closed_forms.gaussian),
    "ams": Case(sketch.ams, closed_forms.ams),
    "srht": Case(sketch.srht, closed_forms.srht, at_most_d=True),
    "count_sketch": Case(hashed(1), closed_forms.blocked(rows=1)),
    "count_sketch_x5": Case(hashed(5), closed_forms.blocked(rows=5)),
    "count_sketch_independent": Case(
        hashed(2, hash="independent"), closed_forms.independent(rows=2)
    ),
    "count_sketch_polynomial": Case(
        hashed(1, signs="polynomial"), closed_forms.blocked(rows=1)
    ),
    "sparse_embedding_one": Case(
        lambda b: sketch.sparse_embedding(b, min(b, 4)),
        closed_forms.sparse_one(nonzeros=4),
    ),
    "sparse_embedding_two": Case(
        lambda b: sketch.sparse_embedding(4 * b, 4, kind="blocked"),
        closed_forms.sparse_two(nonzeros=4),
    ),
    "uniform_sampling": Case(
        sketch.uniform_sampling, closed_forms.uniform_sampling, at_most_d=True
    ),
    "identity": Case(lambda b: sketch.identity(), closed_forms.identity),
}
# One of each code: the others only have other words, rows or blocks.
KINDS = [
    "gaussian", "ams", "srht", "count_sketch_x5", "count_sketch_independent",
    "sparse_embedding_one", "uniform_sampling", "identity",
]  # fmt: skip


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
