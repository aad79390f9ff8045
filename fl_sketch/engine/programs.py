"""Programs as jax traces them: a digest of one, what it writes and what it computes.

By the digest a folder knows its rounds again. Printed programs lack the arrays that
functions close over, and those of a function that is jitted are inside of it. So the
constants of all programs within are digested too.
"""

import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fl_sketch.core import platforms
from fl_sketch.engine.mesh import cores, name_of, on_cpu
from fl_sketch.models import params_io

CALLBACK = re.compile(r"custom_call @\w*callback|stablehlo\.(send|recv)")
COMPILER = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC", "NVIDIA_TF32_OVERRIDE")
LEVELS = (  # settings of jax that change what is compiled and not what is traced
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_level",
    "jax_memory_fitting_effort",
)


def digest(function: Callable, *arguments: Any) -> str:
    """Returns a SHA-256 of `function` as traced with `arguments`, constants included.

    >>> one, two = (jax.jit(lambda x, c=np.full(3, c): x + c) for c in (1.0, 2.0))
    >>> digest(one, 0.0) == digest(two, 0.0)
    False
    """
    program = jax.make_jaxpr(function)(*arguments)
    text = re.sub("0x[0-9a-f]+", "", str(program))  # addresses of functions
    arrays = {str(n): _numbers(one) for n, one in enumerate(_constants(program))}
    return params_io.digest(arrays | {"": np.frombuffer(text.encode(), "u1")})


def digest_of_arrays(tree: Any) -> str:
    """Returns a SHA-256 of all arrays of a tree."""
    leaves = jax.tree.leaves(tree)
    return params_io.digest({str(n): _numbers(leaf) for n, leaf in enumerate(leaves)})


def fingerprint(lowered: jax.stages.Lowered, mesh: jax.sharding.Mesh) -> str:
    """Returns a SHA-256 of what decides the numbers of a program of a mesh.

    These are its operations and constants as the compiler gets them, versions, settings
    and devices, on CPUs also the processor and the number of cores. What a callback to
    the host computes cannot be seen: a program with one has another fingerprint each
    time.
    """
    text = lowered.as_text()
    facts = [text, platforms.versions(), name_of(mesh), *map(_setting, COMPILER)]
    facts += [str(getattr(jax.config, name, None)) for name in LEVELS]
    facts += [platforms.processor(), cores()] if on_cpu(mesh) else []
    facts += [os.urandom(16).hex()] if CALLBACK.search(text) else []
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _setting(name: str) -> str | None:
    """Returns a variable of the compiler, or the contents of the file that it names."""
    value = os.environ.get(name)
    path = pathlib.Path(value or "")
    return path.read_text() if value and path.is_file() else value


def bytes_written(program: Any) -> int:
    """Returns the bytes of all values that a program makes, of a loop those of a turn.

    XLA reuses most of that memory, or needs none where it fuses operations.
    """
    total = 0
    for equation in program.eqns:
        inner = [bytes_written(part) for part in _parts(equation) if _is_program(part)]
        if inner:  # of branches, one is taken
            total += max(inner) if equation.primitive.name == "cond" else sum(inner)
            continue
        made: list[Any] = [variable.aval for variable in equation.outvars]
        shapes = [shape for shape in made if hasattr(shape, "shape")]
        total += sum(math.prod(s.shape) * s.dtype.itemsize for s in shapes)
    return total


def _constants(program: Any) -> Iterator[Any]:
    """Yields the constants of a program and of all programs within, in their order."""
    if isinstance(program, core.ClosedJaxpr):
        yield from program.consts
    for equation in program.eqns:
        for value in equation.invars:
            if isinstance(value, core.Literal):
                yield value.val
        for part in _parts(equation):
            if _is_program(part):
                yield from _constants(part)
            elif isinstance(part, np.ndarray | jax.Array):
                yield part


def _parts(equation: Any) -> list[Any]:
    """Returns the parameters of an equation one by one, programs as they are."""
    return jax.tree.leaves(equation.params, is_leaf=_is_program)


def _is_program(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def _numbers(constant: Any) -> np.ndarray:
    kind = getattr(constant, "dtype", None)
    if kind is not None and jnp.issubdtype(kind, jax.dtypes.extended):
        constant = jax.random.key_data(constant)
    return np.asarray(constant)
