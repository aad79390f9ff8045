"""Layouts: arrays as the bytes of a payload and back, as the ledger counts them.

>>> leaves = [jax.ShapeDtypeStruct((2,), "float32"), jax.ShapeDtypeStruct((), "int32")]
>>> layout = of_leaves(leaves)
>>> data = layout.pack([np.ones(2, np.float32), np.int32(-3)])
>>> len(data), layout.unpack(data)
(12, [array([1., 1.], dtype=float32), array(-3, dtype=int32)])
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core import wire
from fl_sketch.core.protocols import Field
from fl_sketch.core.wire import FLOAT_BITS


class Layout(NamedTuple):
    """How some arrays become bytes.

    Attributes:
      leaves: their shapes and types.
      fields: the field of each; None: it is always 1, and not sent. A float of one bit
        is 1/2 or -1/2.
    """

    leaves: tuple[Any, ...]
    fields: tuple[Field | None, ...]

    @property
    def sent(self) -> tuple[Field, ...]:
        """The wire format."""
        return tuple(field for field in self.fields if field is not None)

    @property
    def size(self) -> int:
        """The number of bytes."""
        return -(-wire.size_in_bits(self.sent) // 8)

    def pack(self, arrays: Sequence[Any]) -> bytes:
        """Returns the bytes of arrays."""
        pairs = zip(arrays, self.fields, strict=True)
        sent = [_numbers(array, field) for array, field in pairs if field is not None]
        return wire.encode(self.sent, sent) if sent else b""

    def unpack(self, data: bytes) -> list[np.ndarray]:
        """Returns the arrays in a payload.

        Raises:
          ValueError: for a payload of another length.
        """
        received = iter(wire.decode(self.sent, data))
        return [
            np.ones(leaf.shape, leaf.dtype)
            if field is None
            else _array(next(received), leaf, field)
            for leaf, field in zip(self.leaves, self.fields, strict=True)
        ]


def of_leaves(leaves: Sequence[Any], trailing: Sequence[str] = ()) -> Layout:
    """Returns the layout of arrays of these shapes.

    Args:
      leaves: shapes and types, in order.
      trailing: how the last of them are sent, see `Mechanism.trailing`.
    """
    kinds = ["float"] * (len(leaves) - len(trailing)) + [*trailing]
    pairs = zip(leaves, kinds, strict=True)
    return Layout(tuple(leaves), tuple(_field(leaf, kind) for leaf, kind in pairs))


def of_fields(fields: Sequence[Field]) -> Layout:
    """Returns the layout of one array for each of the fields."""
    types = {"float": np.float32, "uint": np.uint32}
    leaves = (jax.ShapeDtypeStruct((one.count,), types[one.kind]) for one in fields)
    return Layout(tuple(leaves), tuple(fields))


def _field(leaf: Any, kind: str) -> Field | None:
    if kind == "one":
        return None
    if kind == "half":
        return Field(leaf.size, 1, "uint")
    return Field(leaf.size, FLOAT_BITS, "float" if _is_float(leaf) else "uint")


def _is_float(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)


def _numbers(array: Any, field: Field) -> np.ndarray:
    """Returns an array as `wire.encode` takes it: floats, or unsigned integers."""
    flat = np.asarray(array).reshape(-1)
    if field.kind == "float":
        return flat.astype(np.float32)
    if _is_float(flat):
        return (flat > 0).astype(np.uint32)
    return flat.astype(np.int64).astype(np.uint32)


def _array(received: np.ndarray, leaf: Any, field: Field) -> np.ndarray:
    """Returns an array of the shape and the type of `leaf`."""
    if field.kind == "uint" and _is_float(leaf):
        received = received.astype(np.float32) - np.float32(0.5)
    elif leaf.dtype == np.int32:
        received = received.view(np.int32)
    return received.astype(leaf.dtype).reshape(leaf.shape)
