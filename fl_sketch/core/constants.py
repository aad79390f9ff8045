"""Arrays that programs only read: arguments of a program instead of literals in it.

If a jitted function closes over arrays, jax compiles them into the program as literals.
The program is then as large as the arrays, takes longer to compile, and has its own
copy. Functions should close over a `Constant` instead. Its value is the arrays, and an
argument in a program made by `as_argument`.

>>> weights = Constant(jax.numpy.arange(1000.0))
>>> total = lambda x: (weights.value * x).sum()
>>> with noted() as found:
...     shape = jax.eval_shape(total, 1.0)
>>> found == [weights]
True
>>> program = jax.jit(as_argument(total, found)).lower(2.0, trees_of(found))
>>> "tensor<1000xf32>" in program.as_text().split("{jax")[0]  # an input
True
>>> float(program.compile()(2.0, trees_of(found)))
999000.0
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from fl_sketch.core.protocols import Tree


class Constant:
    """A `tree` of arrays that functions read as `value`."""

    def __init__(self, tree: Tree):
        """Takes the arrays."""
        self.tree = tree

    @property
    def value(self) -> Tree:
        """The arrays, or their arguments in the program that is being traced."""
        if (met := _MET.get()) is not None and self not in met:
            met.append(self)
        program = _PROGRAM.value
        return program.arguments.get(self, self.tree) if program else self.tree


class _Program:
    """The `arguments` of a program that stand for constants, while it is traced."""

    def __init__(self, arguments: dict[Constant, Tree]):
        self.arguments = arguments


# Functions that are jitted within are traced anew in every program: jax would give one
# program the arguments of another.
_PROGRAM = jax.make_user_context(None)
_MET: contextvars.ContextVar[list[Constant] | None] = contextvars.ContextVar(
    "met", default=None
)


@contextlib.contextmanager
def noted() -> Iterator[list[Constant]]:
    """Yields a list of the constants that are read until the block ends.

    jax does not trace a jitted function twice. Constants that it reads are then missing
    here and stay literals.
    """
    before, met = _MET.get(), list[Constant]()
    _MET.set(met)
    try:
        yield met
    finally:
        _MET.set(before)


def as_argument(function: Callable, constants: Sequence[Constant]) -> Callable:
    """Returns a function whose last argument, `trees_of` the constants, has them."""

    def called(*arguments):
        *own, trees = arguments
        outer = _PROGRAM.value
        within = {**outer.arguments} if outer else {}
        program = _Program(within | dict(zip(constants, trees, strict=True)))
        try:
            with _PROGRAM(program) if constants else contextlib.nullcontext():
                return function(*own)
        finally:
            program.arguments = {}  # jax's caches keep the program, not its arrays

    called.__name__ = getattr(function, "__name__", called.__name__)
    return called


def trees_of(constants: Sequence[Constant]) -> list[Tree]:
    """Returns the arrays of each constant."""
    return [one.tree for one in constants]


def size_of(constants: Sequence[Constant]) -> int:
    """Returns the bytes of all arrays of the constants."""
    leaves = jax.tree.leaves(trees_of(constants))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def jitted(function: Callable, **options: Any) -> Callable:
    """Returns a jitted function whose constants are arguments, found at its first call.

    Args:
      function: a function of trees of arrays.
      **options: those of `jax.jit`.
    """
    known: list[Callable] = []

    def called(*arguments):
        if not known:
            with noted() as found:
                jax.eval_shape(function, *arguments)
            program = jax.jit(as_argument(function, found), **options)
            known.append(lambda *own: program(*own, trees_of(found)))
        return known[0](*arguments)

    return called
