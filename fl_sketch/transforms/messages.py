"""What a chain of transformations sends, found by tracing its update.

Transformations record the values that they made from messages. Later transformations
recognise a value if nothing has changed it.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import optax

from fl_sketch.core.protocols import Tree

BYTE = 8  # bits


class Note(NamedTuple):
    """A value that a transformation made.

    Attributes:
      value: the value, an array or a tree of arrays.
      bits: the length of the message that it represents; None: all its numbers are
        sent.
      grows: whether its errors may be longer than the update, and so add up.
    """

    value: Any
    bits: int | None = None
    grows: bool = False


_notes: contextvars.ContextVar[list[Note] | None] = contextvars.ContextVar(
    "notes", default=None
)
_sent: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar(
    "sent", default=None
)


def note(value: Any, *, bits: int | None = None, grows: bool = False) -> None:
    """Notes what a transformation made, where something asks for it."""
    notes = _notes.get()
    if notes is not None:
        notes.append(Note(value, bits, grows))


@contextlib.contextmanager
def noted() -> Iterator[list[Note]]:
    """Yields the list of what is noted meanwhile, and was before if it is nested."""
    before = _notes.get()
    notes = [] if before is None else before
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def about(value: Any, notes: list[Note]) -> Note:
    """Returns the note about a value; of one that was changed nothing is known."""
    return next((one for one in notes if one.value is value), Note(value))


def counted(message: Any) -> bool:
    """Counts what is averaged, where `message_bits` asks; returns whether it does."""
    sent = _sent.get()
    if sent is None:
        return False
    leaves = jax.tree.leaves(message)
    whole = sum(leaf.size * leaf.dtype.itemsize * BYTE for leaf in leaves)
    known = about(message, _notes.get() or []).bits
    sent.append(whole if known is None else known)
    return True


def message_bits(tx: optax.GradientTransformation, params: Tree) -> int:
    """Returns the bits of a client's message in one update of a chain.

    `aggregate` averages messages. A message of a sketch has 32 bits per number. A
    message of `compress`, alone or within `error_feedback`, has the bits of the
    compressor if `aggregate` follows directly. Devices of one mesh average all numbers
    of its values, whatever the message would take.

    >>> import jax.numpy as jnp
    >>> from fl_sketch import sketch, transforms
    >>> op = sketch.count_sketch(cols=10)
    >>> parts = transforms.sketch(op), transforms.aggregate("devices")
    >>> message_bits(optax.chain(*parts, transforms.desketch(op)), jnp.zeros(100))
    320

    Args:
      tx: a chain with `aggregate`.
      params: the parameters, or their shapes.

    Raises:
      ValueError: for a chain that averages nothing.
    """
    sent, tx = list[int](), optax.with_extra_args_support(tx)
    token = _sent.set(sent)
    try:
        with noted():
            jax.eval_shape(
                lambda p, key: tx.update(p, tx.init(p), p, key=key),
                params,
                jax.eval_shape(lambda: jax.random.key(0)),
            )
    finally:
        _sent.reset(token)
    if not sent:
        msg = "Expected a chain with transforms.aggregate, got one that sends nothing."
        raise ValueError(msg)
    return sum(sent)
