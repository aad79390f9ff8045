"""The TFDS builder of the data sets that come as raw files, without TensorFlow.

The builders that TFDS brings for these sets need TensorFlow to be prepared. This one
reads the raw files itself, hands images over as PNG bytes and writes array_record.
It has one configuration for each data set, so that "fl_sketch/mnist" is a name that
TFDS knows, and keeps the order of the files.
"""

import io
import pathlib
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from fl_sketch.data import raw

VERSION = "1.0.0"  # to be raised with every change of what is written


class FlSketch(tfds.core.GeneratorBasedBuilder):
    """Data sets prepared from the raw files in `manual_dir`."""

    name = "fl_sketch"
    VERSION = tfds.core.Version(VERSION)
    MANUAL_DOWNLOAD_INSTRUCTIONS = "See fl_sketch.data.raw for the files."
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in raw.SOURCES]

    def _info(self) -> tfds.core.DatasetInfo:
        source = raw.SOURCES[str(self.builder_config_name)]
        if source.shape:
            given, feature = "image", tfds.features.Image(shape=source.shape)
        else:
            given, feature = "text", tfds.features.Text()
        if source.classes:
            label = tfds.features.ClassLabel(num_classes=source.classes)
        else:
            label = tfds.features.Scalar(np.int32)
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({given: feature, "label": label}),
            supervised_keys=(given, "label"),
            disable_shuffling=True,  # keep the order of the file
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        folder = pathlib.Path(dl_manager.manual_dir)
        name = str(self.builder_config_name)
        made = raw.verified(name, folder)
        self.info.metadata["sha256"] = made  # pyright: ignore[reportOptionalSubscript]
        splits = raw.SOURCES[name].splits
        return {split: self._generate_examples(folder, split) for split in splits}

    def _generate_examples(
        self, folder: pathlib.Path, split: str
    ) -> Iterator[tuple[int, dict]]:
        source = raw.SOURCES[str(self.builder_config_name)]
        inputs, targets = source.examples(folder, split)
        pairs = zip(inputs, targets, strict=True)
        for number, (given, label) in enumerate(pairs):
            if source.shape:
                yield number, {"image": _png(given), "label": int(label)}
            else:
                yield number, {"text": given, "label": int(label)}


def _png(image: np.ndarray) -> io.BytesIO:
    """Returns an image as a PNG file; the least compression is thrice as fast."""
    file = io.BytesIO()
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    Image.fromarray(pixels).save(file, "png", compress_level=1)
    file.seek(0)
    return file
