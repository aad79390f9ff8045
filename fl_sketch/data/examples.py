"""What a data set is: inputs and targets, for training and for testing.

Images stay uint8 from file to device, where they take a quarter of the memory and of
every transfer. A jitted step makes a batch into floats as its first operation, with
`normalise`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import shown
from fl_sketch.data.tokenizer import Tokenizer

ALIGNED = 64  # bytes
FOUND_CLASSES = ("classes", 0)  # an entry of `Splits.learnt`


class Examples(NamedTuple):
    """Pairs of an input and its target, in an order that never changes.

    Attributes:
      inputs: uint8 or float32 [n, ...], such as images [n, height, width, channels]; or
        n strings in an array of objects; or int32 tokens [n, length]. Arrays from files
        may be mapped into memory and are not writable.
      targets: int32 classes [n], or [n, length] where every token has one; float32
        [n, numbers] if they are labels or numbers.
    """

    inputs: np.ndarray
    targets: np.ndarray

    __repr__ = shown.fields


class Splits(NamedTuple):
    """One data set, for training and for testing.

    Attributes:
      name: the name by which it was loaded.
      train: the examples to train on.
      test: the examples to test on.
      classes: the number of classes of the targets, or of labels or numbers of each.
      owners: the client of each training example, int32 [n]; None: unknown.
      learnt: what was found in the training data and decides a model's shape or what
        its outputs mean: pairs of a config's key, or another name, and its value.
      validation: the examples for choosing among runs, so that the test set decides
        nothing; None: there are none.
      class_names: a name for each class or label; empty: they have none.
      owner_names: a name for each number in `owners`; empty: they have none.
      tokenizer: what makes texts into inputs; None: unknown, or inputs are no tokens.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    owners: np.ndarray | None = None
    learnt: tuple[tuple[str, str | int], ...] = ()
    validation: Examples | None = None
    class_names: tuple[str, ...] = ()
    owner_names: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None

    __repr__ = shown.fields

    @property
    def measured(self) -> dict[str, Examples]:
        """The parts that models are measured on, by name."""
        parts = {"test": self.test, "validation": self.validation}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def parts(self) -> dict[str, Examples]:
        """All parts, by name."""
        return {"train": self.train} | self.measured

    def map(self, change: Callable[[Examples], Examples]) -> "Splits":
        """Returns the data set with `change` applied to each part."""
        changed = {name: change(part) for name, part in self.parts.items()}
        return self._replace(**changed)


def from_parts(
    name: str, parts: Mapping[str, Examples], classes: int = 0, **fields
) -> Splits:
    """Returns the data set of its parts, by their names.

    Without a declared number of classes there are as many as the targets show, which is
    marked as learnt.
    """
    if classes:
        return Splits(name, classes=classes, **parts, **fields)
    found = 1 + max(int(part.targets.max()) for part in parts.values())
    return Splits(name, classes=found, learnt=(FOUND_CLASSES,), **parts, **fields)


def digests(splits: Splits) -> dict[str, str]:
    """Returns a SHA-256 of every array of a data set of numbers, by its name."""
    arrays = {
        f"{name}_{kind}": array
        for name, part in splits.parts.items()
        for kind, array in part._asdict().items()
    }
    if splits.owners is not None:
        arrays["owners"] = splits.owners
    return {name: digest(array) for name, array in arrays.items()}


def digest(array: np.ndarray) -> str:
    """Returns a SHA-256 of the type, the shape and the bytes of an array."""
    whole = np.ascontiguousarray(array)
    hashed = hashlib.sha256(f"{whole.dtype.str} {whole.shape} ".encode())
    hashed.update(whole.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def with_classes(splits: Splits, classes: int, *, finite: bool = True) -> Splits:
    """Returns the data set with a declared number of classes; 0: the number found.

    A declared number is not learnt from the data. Training targets must be of these
    classes if they must be `finite`, as in `npz.checked`.
    """
    if not classes:
        return splits
    exact = splits.train.targets.dtype.kind == "f"  # a column for each
    found = splits.classes
    if not (finite or exact):
        others = (part for name, part in splits.parts.items() if name != "train")
        found = 1 + max(int(part.targets.max()) for part in others)
    if classes < found or (exact and classes != found):
        least = f"classes{'=' if exact else ' >= '}{found}"
        msg = f"Expected {least}, as in {splits.name}, got classes={classes}."
        raise ValueError(msg)
    learnt = tuple(pair for pair in splits.learnt if pair != FOUND_CLASSES)
    return splits._replace(classes=classes, learnt=learnt)


def name_of(names: Sequence[str], number: int) -> str:
    """Returns the name of a class or an owner; its number if it has none."""
    return names[number] if number < len(names) else str(number)


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns the array if CPU devices can share its memory, else a copy that they can.

    jax shares memory that begins at a multiple of `ALIGNED` bytes, and copies all else
    for each device. A shared array must not be changed afterwards.
    """
    shared = array.flags.c_contiguous and array.ctypes.data % ALIGNED == 0
    if shared or not array.nbytes or array.dtype == object:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def aligned_empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns an array, not filled, whose memory CPU devices can share."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNED, np.uint8)
    begin = -memory.ctypes.data % ALIGNED
    return memory[begin : begin + size].view(dtype).reshape(shape)


def normalise(images: jax.Array) -> jax.Array:
    """Returns `images` as float32 in [0, 1]: bytes divided by 255, floats as they are.

    Tokens, which are int32, stay tokens.

    >>> normalise(jnp.array([0, 255], jnp.uint8))
    Array([0., 1.], dtype=float32)
    """
    if images.dtype == jnp.uint8:
        return images.astype(jnp.float32) / 255
    return images if images.dtype == jnp.int32 else images.astype(jnp.float32)
