"""From the records of a prepared TFDS data set to arrays, without TensorFlow.

Works for any data set with one image or one text and one integer label.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from fl_sketch.core import untrusted_files
from fl_sketch.data.examples import Examples

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # that start no other program
CHUNK = 1024  # records read at once
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names for numbers of channels


def decoded(builder: tfds.core.DatasetBuilder, split: str) -> Examples:
    """Returns one split in its order: images as uint8, or an array of strings.

    Args:
      builder: a TFDS builder whose data are prepared.
      split: the name of the split.

    Raises:
      ValueError: for records of another kind, images of several sizes, and files
        that are not in a format of random access, such as TFRecord.
    """
    given, label = _keys(builder)
    value_of = _reader(_features(builder)[given])
    try:
        source: Any = builder.as_data_source(
            split,  # pyright: ignore[reportCallIssue]
            decoders={given: tfds.decode.SkipDecoding()},
        )
    except NotImplementedError:
        found = builder.info.file_format
        msg = (
            f"Expected {builder.info.full_name} to be prepared as array_record, got "
            f"{found and found.value}: prepare it again with that file_format."
        )
        raise ValueError(msg) from None
    inputs, targets = np.empty(0), np.empty(len(source), np.int32)
    for start in range(0, len(source), CHUNK):
        stop = min(start + CHUNK, len(source))
        records = source.__getitems__(list(range(start, stop)))
        targets[start:stop] = [record[label] for record in records]
        values = [value_of(record[given]) for record in records]
        if not start:
            inputs = _space_for(len(source), values[0])
        for place, value in enumerate(values, start):
            _same_size(value, inputs, builder)
            inputs[place] = value
    return Examples(inputs, targets)


def classes(builder: tfds.core.DatasetBuilder) -> int:
    """Returns how many classes the data of `builder` have by TFDS, or 0."""
    feature = _features(builder)[_keys(builder)[1]]
    known = isinstance(feature, tfds.features.ClassLabel) and feature.num_classes
    return known or 0


def joined(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the strings `texts` as one array of bytes, and where each of them ends.

    The bytes are UTF-8; an end is the place after the last byte.

    >>> joined(np.array(["to", "be"], object))
    (array([116, 111,  98, 101], dtype=uint8), array([2, 4]))
    """
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded])
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def parted(octets: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the array of strings of which `joined` made `octets` and `ends`."""
    content, texts = octets.tobytes(), np.empty(len(ends), object)
    start = 0
    for place, end in enumerate(ends.tolist()):
        texts[place] = content[start:end].decode()
        start = end
    return texts


def _keys(builder: tfds.core.DatasetBuilder) -> tuple[str, str]:
    """Returns the names of the input and of the label among the features."""
    features = _features(builder)
    pair: Any = builder.info.supervised_keys
    if not pair:
        kinds = (tfds.features.Image, tfds.features.Text), tfds.features.ClassLabel
        found = [[k for k in features if isinstance(features[k], t)] for t in kinds]
        pair = [names[0] for names in found if len(names) == 1]
    whole = len(pair) == 2 and all(isinstance(key, str) for key in pair)
    if not whole or not _is_integer(features[pair[1]]):
        msg = (
            f"Expected {builder.info.full_name} to have one image or one text and one "
            f"label, got {', '.join(features)}."
        )
        raise ValueError(msg)
    return pair[0], pair[1]


def _features(builder: tfds.core.DatasetBuilder) -> Any:
    """Returns the features of a record by name; to TFDS they may be any tree."""
    return builder.info.features


def _is_integer(feature: Any) -> bool:
    return feature.shape == () and np.dtype(feature.np_dtype).kind in "iu"


def _reader(feature: Any) -> Callable:
    """Returns what makes an array, or a string, of the bytes of one input."""
    if isinstance(feature, tfds.features.Text):
        return bytes.decode
    mode = MODES.get(feature.shape[-1]) if feature.shape else None
    if not isinstance(feature, tfds.features.Image) or not mode:
        msg = f"Expected an input of kind Image or Text, got {feature!r}."
        raise ValueError(msg)
    if feature.np_dtype != np.uint8:
        msg = f"Expected images of uint8, got {feature.np_dtype}."
        raise ValueError(msg)

    def image(content: bytes) -> np.ndarray:
        pixels = untrusted_files.picture(content, mode, FORMATS)
        return pixels if pixels.ndim == 3 else pixels[..., None]

    return image


def _space_for(count: int, value: np.ndarray | str) -> np.ndarray:
    if isinstance(value, str):
        return np.empty(count, object)
    return np.empty((count, *value.shape), value.dtype)


def _same_size(
    value: np.ndarray | str, inputs: np.ndarray, builder: tfds.core.DatasetBuilder
) -> None:
    shape = getattr(value, "shape", ())
    if shape != inputs.shape[1:]:
        msg = (
            f"Expected all images of {builder.info.full_name} to have one shape, got "
            f"{inputs.shape[1:]} and {shape}."
        )
        raise ValueError(msg)
