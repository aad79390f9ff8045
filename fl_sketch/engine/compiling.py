"""Compiles programs, on CPUs without the sums that some versions of jaxlib get wrong.

XLA hands sums on CPUs to a library, YNNPACK. In jaxlib 0.10.2 and 0.11 it adds up some
parts of a broadcast array several times, differently in each call, and in 0.10.2 sums
over products of more than 32,768 rows can be wrong in the last ones (tensorflow#126812,
jax#39103). jaxlib 0.12 has neither fault.
"""

import collections
import re
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from fl_sketch.engine.mesh import compiler_options, on_cpu

FAULTY = tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 12)
WITHOUT = {"xla_cpu_experimental_ynn_fusion_type": ""}
CALL = re.compile(r"calls=%?([\w.-]+).*__ynn_fusion")
COMPUTATION = re.compile(r"^%?([\w.-]+) \(.*\{\n((?:.*\n)*?)\}", re.MULTILINE)
OPERATION = re.compile(r"%?([\w.-]+) = \w+\[([\d,]*)\]\S* ([\w-]+)\((.*?)\)(.*)")
AXES = re.compile(r", (?:dimensions=\{|iota_dimension=)([\d,]*)")
WINDOW = re.compile(r"window=\{size=([\dx]+)")
ROWS = 2**15  # from which on sums of products are wrong


class _Operation(NamedTuple):
    """An operation, its operands, and the axes that a broadcast or a sum names."""

    name: str
    shape: tuple[int, ...]
    kind: str
    operands: list[str]
    axes: tuple[int, ...]


def compile_program(lowered: jax.stages.Lowered, mesh: Mesh) -> jax.stages.Compiled:
    """Compiles a program of a mesh by its `compiler_options`.

    On CPUs it compiles once more, without the library, if there is a wrong sum.
    """
    options = compiler_options(mesh)
    program = lowered.compile(options)
    if FAULTY and on_cpu(mesh) and has_wrong_sums(program.as_text() or ""):
        program = lowered.compile(options | WITHOUT)
    return program


def has_wrong_sums(text: str) -> bool:
    """Returns whether a compiled program, as text, has a sum that may be wrong."""
    called = set(CALL.findall(text))
    return bool(called) and any(
        name in called and _is_wrong(list(_operations(body)))
        for name, body in COMPUTATION.findall(text)
    )


def _operations(body: str) -> Iterator[_Operation]:
    for name, shape, kind, operands, rest in OPERATION.findall(body):
        axes = _whole("".join(AXES.findall(rest)[:1]))
        if window := WINDOW.search(rest):
            sizes = enumerate(window[1].split("x"))
            axes = tuple(axis for axis, size in sizes if size != "1")
        given = re.findall(r"%([\w.-]+)", operands)
        yield _Operation(name, _whole(shape), kind, given, axes)


def _whole(numbers: str) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers.split(",") if number)


def _is_wrong(operations: list[_Operation]) -> bool:
    """Returns whether one call of the library has a sum that may be wrong.

    That is a sum over an axis along which an array was only broadcast, or one next to a
    product of matrices if there are many rows.
    """
    shapes = collections.defaultdict(tuple, {one.name: one.shape for one in operations})
    # The axes along which an array is known not to be constant.
    real: dict[str, set[int]] = collections.defaultdict(set)
    for one in operations:
        if one.kind in ("reduce", "reduce-window"):
            sizes = dict(enumerate(shapes[one.operands[0]]))
            over = {axis for axis in one.axes if sizes.get(axis) != 1}
            if over - real[one.operands[0]]:
                return True
        real[one.name] = _real(one, shapes, real)
    most = max((size for shape in shapes.values() for size in shape), default=0)
    return most > ROWS and {"dot", "reduce"} <= {one.kind for one in operations}


def _real(one: _Operation, shapes: dict, real: dict) -> set[int]:
    """Returns the axes along which a result is known not to be constant."""
    every = {axis for axis, size in enumerate(one.shape) if size > 1}
    given = [real[name] for name in one.operands]
    match one.kind:
        case "parameter" | "constant" | "dot":
            return every
        case "iota":
            return {*one.axes}
        case "broadcast":
            return {axis for place, axis in enumerate(one.axes) if place in given[0]}
        case "transpose":
            return {place for place, axis in enumerate(one.axes) if axis in given[0]}
        case "reduce":
            axes = range(len(shapes[one.operands[0]]))
            kept = (axis for axis in axes if axis not in one.axes)
            return {place for place, axis in enumerate(kept) if axis in given[0]}
        case "reduce-window":
            return given[0] & every
    if all(shapes[name] == one.shape for name in one.operands):  # number by number
        return set().union(*given)
    own = (sum(size > 1 for size in shapes[name]) for name in one.operands)
    return every if [*own] == [*map(len, given)] else set()
