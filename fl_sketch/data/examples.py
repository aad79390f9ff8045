"""What a data set is: inputs, targets and how pixels become numbers.

Images stay uint8 from file to device: a set that is resident on the device is four
times smaller, and so is every transfer and every gather. A jitted step makes a batch
into floats as its first operation, with `normalise`.
"""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ALIGNED = 64  # bytes


class Examples(NamedTuple):
    """Pairs of an input and its target, in an order that never changes.

    Attributes:
      inputs: uint8 or float32 images [n, height, width, channels], or n strings in
        an array of objects, or int32 tokens [n, length]. Arrays from files are mapped
        into memory: not writable.
      targets: int32 [n], or [n, length] where every token has one; float32 [n, numbers]
        where they are no classes.
    """

    inputs: np.ndarray
    targets: np.ndarray


class Splits(NamedTuple):
    """One data set, for training and for testing.

    Attributes:
      name: the name by which it was loaded.
      train: the examples to train on.
      test: the examples to test on.
      classes: the number of classes of the targets, or of labels or numbers of each.
      owners: the client of each training example, int32 [n], where the data say it.
      learnt: the key of a config, with its value, by which something that decides a
        model's shape was found in the training data; None: nothing was.
      validation: the examples to choose by, so that those to test on decide nothing;
        None: there are none.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    owners: np.ndarray | None = None
    learnt: tuple[str, str | int] | None = None
    validation: Examples | None = None

    @property
    def measured(self) -> dict[str, Examples]:
        """The parts that models are measured on, by name."""
        found = {"test": self.test, "validation": self.validation}
        return {name: part for name, part in found.items() if part is not None}


def digests(splits: Splits) -> dict[str, str]:
    """Returns a SHA-256 of every array of a data set, by its name.

    Args:
      splits: the data set, its texts as tokens.
    """
    parts = {"train": splits.train} | splits.measured
    arrays = {f"{n}_{kind}": a for n, p in parts.items() for kind, a in _pairs(p)}
    if splits.owners is not None:
        arrays["owners"] = splits.owners
    return {name: _digest(array) for name, array in arrays.items()}


def _pairs(part: Examples) -> list[tuple[str, np.ndarray]]:
    return list(part._asdict().items())


def _digest(array: np.ndarray) -> str:
    """Returns a SHA-256 of the type, the shape and the bytes of an array."""
    whole = np.ascontiguousarray(array)
    found = hashlib.sha256(f"{whole.dtype.str} {whole.shape} ".encode())
    found.update(whole.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def with_classes(splits: Splits, classes: int) -> Splits:
    """Returns `splits` with the number of classes that was said, or 0: that was found.

    Args:
      splits: the data set.
      classes: the number of classes, so that nothing is learnt of the data; 0: as many
        as were found.

    Raises:
      ValueError: if there are targets of more classes, or of numbers or labels which
        are not as many.
    """
    if not classes:
        return splits
    if classes < splits.classes:
        msg = (
            f"Expected classes >= {splits.classes}, as the targets of "
            f"{splits.name} show, got classes={classes}."
        )
        raise ValueError(msg)
    if splits.train.targets.dtype.kind == "f" and classes != splits.classes:
        msg = (
            f"Expected classes={splits.classes}, the numbers that the targets of "
            f"{splits.name} have for each example, or 0, got classes={classes}."
        )
        raise ValueError(msg)
    return splits._replace(classes=classes, learnt=None)


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns an array that CPU devices share, in other memory if they could not.

    jax takes over what begins at a multiple of `ALIGNED` bytes, and copies all else for
    each device. Arrays that are mapped from a file begin so.

    Args:
      array: an array, which is returned itself if devices can share it. Then it must
        not be changed afterwards.
    """
    right = array.flags.c_contiguous and array.ctypes.data % ALIGNED == 0
    if right or not array.nbytes or array.dtype == object:
        return array
    room = np.empty(array.nbytes + ALIGNED, np.uint8)
    begin = -room.ctypes.data % ALIGNED
    own = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    own[...] = array
    return own


def normalise(images: jax.Array) -> jax.Array:
    """Returns `images` as float32 in [0, 1]: bytes divided by 255, floats as they are.

    Tokens, which are int32, stay tokens.

    >>> normalise(jnp.array([0, 255], jnp.uint8))
    Array([0., 1.], dtype=float32)
    """
    if images.dtype == jnp.uint8:
        return images.astype(jnp.float32) / 255
    if images.dtype == jnp.int32:
        return images
    return images.astype(jnp.float32)
