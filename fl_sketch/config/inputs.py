"""From the data section of a config to what a model sees, and in which shape."""

from typing import NamedTuple

from ml_collections import ConfigDict

from fl_sketch.config.parse import section
from fl_sketch.core import pretrained
from fl_sketch.data import class_subset, datasets, inputs, text
from fl_sketch.data.examples import Examples, Splits, aligned
from fl_sketch.data.inputs import Augmentation, Scaling
from fl_sketch.models.losses import KINDS

MEASURED = "train"  # the scaling that the training set decides


class Seen(NamedTuple):
    """How the examples of a data set reach a model.

    Attributes:
      classes: the number of classes, labels or numbers that it predicts.
      scaling: what inputs are shifted and divided by, or None.
      augmentation: what varies them in training, or None.
    """

    classes: int
    scaling: Scaling | None = None
    augmentation: Augmentation | None = None


def splits_of(
    config: ConfigDict, data_dir: str | None, *, finite: bool = True
) -> Splits:
    """Returns the data set of a config, its texts as tokens.

    Args:
      data_dir: the folder of data sets; None: that of FL_SKETCH_DATA.
      finite: whether training data must be finite, and of the classes.
    """
    data, targets = config.data, KINDS[config.model.loss].targets
    splits = datasets.load(data.name, data_dir, targets=targets, finite=finite)
    with section("data"):
        splits = class_subset.part(splits, data.part, data.classes)
        splits = tokens(splits, config)
        if data.part == class_subset.ALL:  # else the part has counted them
            splits = datasets.with_classes(splits, data.classes, finite=finite)
    return splits._replace(train=Examples(*map(aligned, splits.train)))


def tokens(splits: Splits, config: ConfigDict) -> Splits:
    """Returns a data set with its texts as tokens, those of a pretrained model."""
    data, model = config.data, config.model.name
    if not pretrained.named(model):
        words = {"most": data.vocabulary, "vocabulary_file": data.vocabulary_file}
        return text.encoded(splits, length=data.length, **words)
    if data.vocabulary_file:
        msg = f"Expected vocabulary_file='' with model.name={model}, which has tokens, "
        raise ValueError(msg + f"got vocabulary_file={data.vocabulary_file!r}.")
    return text.encoded_by_folder(splits, model, length=data.length)


def seen_of(data: ConfigDict, splits: Splits) -> Seen:
    """Returns how a model sees the data of a `data` section, whose texts are tokens."""
    found, asked, scaling = splits.train.inputs, data.standardise, None
    with section("data"):
        augment = inputs.augmentation(data.augment)
        if (asked != "none" or augment is not None) and found.dtype == "int32":
            msg = (
                "Expected standardise=none and augment=none for tokens, got "
                f"standardise={asked!r}, augment={data.augment!r}."
            )
            raise ValueError(msg)
        if asked == MEASURED:
            scaling = inputs.scaling_of(found)
        elif asked != "none":
            scaling = inputs.parsed_scaling(asked)
        channels = found.shape[-1]
        if scaling and len(scaling.mean) not in (1, channels):
            more = f" or {channels}, one for each channel" * (channels > 1)
            msg = f"Expected standardise to have 1 mean{more}, got "
            raise ValueError(msg + f"standardise={asked!r}.")
    return Seen(splits.classes, scaling, augment)
