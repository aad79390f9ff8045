"""Data sets that others prepared with TFDS, read without TensorFlow.

Works for any data set with one image or one text and one integer label. Its files are
found below `tfds/` in the cache directory, and only TFDS's own code is imported.
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import read_only_builder

from fl_sketch.core import untrusted_files
from fl_sketch.data import cache
from fl_sketch.data.examples import Examples, Splits, from_parts

FOLDER = "tfds"
FEATURES = "tensorflow_datasets.core.features."  # modules of TFDS's own features
TEST_SPLITS = ("test", "validation")  # the first that a data set has is for testing
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # none of which starts other programs
CHUNK = 1024  # records read at once
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names for numbers of channels


def read(name: str, cache_dir: str | os.PathLike | None) -> Splits | None:
    """Returns a prepared data set by its TFDS name, or None.

    Raises:
      ValueError: in one line, for data of another kind, images of several sizes, and
        files without random access, such as TFRecord.
    """
    folder = cache.root(cache_dir) / FOLDER
    with untrusted_files.reading(f"{name} in {folder}", "to be as TFDS leaves it"):
        builder = _builder(name, folder)
        if builder is None:
            return None
        split_of = {"train": "train", "test": _test_split(builder.info)}
        label = builder.info.features[_keys(builder.info)[1]]
        declared = isinstance(label, tfds.features.ClassLabel) and label.num_classes
        data_dir = pathlib.Path(builder.data_dir)
        parts = cache.examples(
            cache.folder(cache_dir, FOLDER) / data_dir.relative_to(folder),
            {"files": _digest(data_dir)},
            lambda part: _decoded(builder, split_of[part]),
        )
        names = tuple(getattr(label, "names", None) or ())
        return from_parts(name, parts, declared or 0, class_names=names)


def _builder(name: str, folder: pathlib.Path) -> Any:
    """Returns the builder of a TFDS data set from its files alone, without network."""
    for file in (folder / re.split(r"[/:]", name)[0]).rglob("features.json"):
        with untrusted_files.reading(file):
            untrusted_files.require_only(json.loads(file.read_text()), FEATURES, file)
    try:
        return read_only_builder.builder_from_files(name, data_dir=folder)
    except (tfds.core.DatasetNotFoundError, ValueError):  # no data, or no name
        return None


def _digest(data_dir: pathlib.Path) -> str:
    """Returns a digest of the names, sizes and times of a data set's files."""
    digest = hashlib.sha256()
    for file in sorted(data_dir.iterdir()):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _test_split(info: Any) -> str:
    splits = list(info.splits)
    tests = [split for split in TEST_SPLITS if split in splits]
    if "train" not in splits or not tests:
        msg = (
            f"Expected {info.full_name} to have a split train and one of "
            f"{', '.join(TEST_SPLITS)}, got {', '.join(splits)}."
        )
        raise ValueError(msg)
    return tests[0]


def _decoded(builder: Any, split: str) -> Examples:
    """Returns one split in its order: images as uint8, or an array of strings."""
    info, (key, label) = builder.info, _keys(builder.info)
    decode = _decoder(info.features[key])
    try:
        skip = {key: tfds.decode.SkipDecoding()}
        source = builder.as_data_source(split, decoders=skip)
    except NotImplementedError:
        form = info.file_format
        msg = (
            f"Expected {info.full_name} to be prepared as array_record, got "
            f"{form and form.value}: prepare it again with that file_format."
        )
        raise ValueError(msg) from None
    inputs, targets = np.empty(0), np.empty(len(source), np.int32)
    for start in range(0, len(source), CHUNK):
        stop = min(start + CHUNK, len(source))
        records = source.__getitems__(list(range(start, stop)))
        targets[start:stop] = [record[label] for record in records]
        for place, record in enumerate(records, start):
            value = decode(record[key])
            shape = getattr(value, "shape", ())
            if not place:
                kind = object if isinstance(value, str) else np.uint8
                inputs = np.empty((len(source), *shape), kind)
            if shape != inputs.shape[1:]:
                msg = (
                    f"Expected all images of {info.full_name} to have one shape, got "
                    f"{inputs.shape[1:]} and {shape}."
                )
                raise ValueError(msg)
            inputs[place] = value
    return Examples(inputs, targets)


def _keys(info: Any) -> tuple[str, str]:
    """Returns the names of the input and of the label among the features."""
    features, pair = info.features, info.supervised_keys
    if not pair:
        kinds = (tfds.features.Image, tfds.features.Text), tfds.features.ClassLabel
        named = [[k for k in features if isinstance(features[k], t)] for t in kinds]
        pair = [names[0] for names in named if len(names) == 1]
    right = len(pair) == 2 and all(isinstance(key, str) for key in pair)
    if right:
        label = features[pair[1]]
        right = label.shape == () and np.dtype(label.np_dtype).kind in "iu"
    if not right:
        msg = (
            f"Expected {info.full_name} to have one image or one text and one label, "
            f"got {', '.join(features)}."
        )
        raise ValueError(msg)
    return pair[0], pair[1]


def _decoder(feature: Any) -> Callable:
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
