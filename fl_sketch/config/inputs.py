"""From the data section of a config to what a model sees, and in which shape."""

from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from fl_sketch.config.parse import section
from fl_sketch.data import class_subset, datasets, inputs, text
from fl_sketch.data.examples import Examples, Splits, aligned
from fl_sketch.data.inputs import Augmentation, Scaling

MEASURED = "train"  # the scaling that the training set decides


class Seen(NamedTuple):
    """How the examples of a data set reach a model.

    Attributes:
      classes: the number of classes, labels or numbers that it foretells.
      scaling: what inputs are shifted and divided by, or None.
      augmentation: what varies them in training, or None.
    """

    classes: int
    scaling: Scaling | None = None
    augmentation: Augmentation | None = None


def splits_of(
    config: ConfigDict,
    data_dir: str | None,
    targets: str = "classes",
    *,
    finite: bool = True,
) -> Splits:
    """Returns the data set of a config, its texts as tokens.

    Args:
      data_dir: the folder of raw data sets; None: that of FL_SKETCH_DATA.
      targets: the kind of the targets.
      finite: whether training data must be finite.

    Raises:
      ValueError: for data of another kind, or of more classes than the config says.
      FileNotFoundError: for data that are not there.
    """
    data = config.data
    whole = datasets.load(data.name, data_dir, targets=targets, finite=finite)
    with section("data"):
        splits = class_subset.part(whole, data.part, data.classes)
        encoded = text.encoded(
            splits,
            length=data.length,
            most=data.vocabulary,
            vocabulary_file=data.vocabulary_file,
        )
        whole_set = data.part == class_subset.ALL  # else the part has counted them
        known = datasets.with_classes(encoded, data.classes if whole_set else 0)
    return known._replace(train=Examples(*map(aligned, known.train)))


def seen_of(config: ConfigDict, splits: Splits) -> Seen:
    """Returns how a config's model sees its data, whose texts are tokens.

    Raises:
      ValueError: in one line, for inputs that cannot be scaled or varied so.
    """
    found = splits.train.inputs
    with section("data"):
        scaling, augment = _fixed(config), inputs.augmentation(config.data.augment)
        asked = config.data.standardise != "none" or augment is not None
        if asked and found.dtype == "int32":
            msg = (
                "Expected standardise=none and augment=none for tokens, got "
                f"standardise={config.data.standardise!r}, "
                f"augment={config.data.augment!r}."
            )
            raise ValueError(msg)
        if config.data.standardise == MEASURED:
            scaling = inputs.measured(found)
        seen = Seen(splits.classes, scaling, augment)
        if scaling and len(scaling.mean) not in (1, found.shape[-1]):
            many = f" or {found.shape[-1]}, one for each channel" * (
                found.shape[-1] > 1
            )
            msg = (
                f"Expected standardise to have 1 mean{many}, got "
                f"standardise={config.data.standardise!r}."
            )
            raise ValueError(msg)
        _require_same_shape(config, seen, found.shape[1:], found.dtype)
    return seen


def _fixed(config: ConfigDict) -> Scaling | None:
    """Returns the scaling that is said in numbers; None without one."""
    said = config.data.standardise
    return None if said in ("none", MEASURED) else inputs.given(said)


def _require_same_shape(config: ConfigDict, seen: Seen, shape, dtype) -> None:
    """Raises for an augmentation that makes of a batch anything but such a batch."""
    if seen.augmentation is None:
        return
    batch = jax.ShapeDtypeStruct((2, *shape), dtype)
    plain = jax.eval_shape(lambda x: inputs.scaled(x, None), batch)
    try:
        made = jax.eval_shape(seen.augmentation, jax.random.key(0), plain)
    except Exception as error:  # whatever a function of one's own does
        msg = (
            f"Expected augment={config.data.augment!r} to take (key, batch) with a "
            f"batch of shape {plain.shape}, got {type(error).__name__}: {error}"
        )
        raise ValueError(" ".join(msg.split())) from None
    if (made.shape, made.dtype) != (plain.shape, plain.dtype):
        msg = (
            f"Expected augment={config.data.augment!r} to return {plain.dtype} of "
            f"shape {plain.shape}, got {made.dtype} of shape {made.shape}."
        )
        raise ValueError(msg)
