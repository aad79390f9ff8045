"""Prepares data sets from raw files, once: as TFDS array_record and as numpy arrays.

python -m launch.prepare_data --dataset=mnist --data_dir=~/raw
python -m launch.prepare_data --dataset=all --data_dir=~/raw --tfds_dir=/scratch/tfds
"""

import pathlib
import time

from absl import flags

from fl_sketch.data import prepared, raw
from launch import command

DATASET = flags.DEFINE_multi_enum(
    "dataset", None, ["all", *raw.SOURCES], "Which; may be repeated.", required=True
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, f"The folder of raw files; by default ${raw.VARIABLE}."
)
TFDS_DIR = flags.DEFINE_string(
    "tfds_dir", None, "Where to; by default ~/.cache/fl_sketch/tfds."
)
OVERWRITE = flags.DEFINE_bool("overwrite", False, "Prepare again what is there.")


def megabytes(folder) -> float:
    """Returns the size of the files in a folder, in millions of bytes."""
    return sum(file.stat().st_size for file in pathlib.Path(folder).iterdir()) / 1e6


def prepare(name: str) -> None:
    """Prepares the data set `name` and prints what it is, where, and how large."""
    root, begin = prepared.cache_folder(TFDS_DIR.value), time.perf_counter()
    builder = prepared.prepare(
        name, DATA_DIR.value, TFDS_DIR.value, overwrite=OVERWRITE.value
    )
    made = time.perf_counter()
    splits = prepared.read(name, DATA_DIR.value, TFDS_DIR.value)
    decoded = time.perf_counter()
    counts = {split: info.num_examples for split, info in builder.info.splits.items()}
    shape = splits.train.inputs.shape[1:] or "text"
    print(f"{name}: {counts}, {shape}, {splits.classes} classes")
    arrays = prepared.arrays_folder(builder, root)
    for folder, seconds in (
        (builder.data_path, made - begin),
        (arrays, decoded - made),
    ):
        print(f"  {megabytes(folder):6.1f} MB in {seconds:5.1f} s  {folder}")
    for file, checksum in builder.info.metadata["sha256"].items():
        print(f"  {checksum}  {file}")


def main():
    """Prepares each data set that was asked for."""
    for name in raw.SOURCES if "all" in DATASET.value else DATASET.value:
        prepare(name)


if __name__ == "__main__":
    command.run(main)
