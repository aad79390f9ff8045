"""Converts raw data sets to checksummed numpy arrays in the cache.

python -m launch.prepare_data --dataset=mnist --data_dir=~/raw
python -m launch.prepare_data --dataset=all --data_dir=~/raw --cache_dir=/scratch/cache
"""

import shutil
import time

from absl import flags

from fl_sketch.data import cache, datasets, raw
from launch import command

DATASET = flags.DEFINE_multi_enum(
    "dataset",
    None,
    ["all", *raw.SOURCES],
    "Data set to prepare. Repeatable.",
    required=True,
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, f"Folder of raw files; the default is ${raw.VARIABLE}."
)
CACHE_DIR = flags.DEFINE_string(
    "cache_dir", None, "Folder of the cache; default: ~/.cache/fl_sketch."
)
OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Prepare data sets again that are in the cache."
)


def prepare(name: str) -> None:
    """Reads the data set `name` and prints what it is, where, and how large."""
    folder, begin = cache.folder(CACHE_DIR.value, name), time.perf_counter()
    path = raw.folder(DATA_DIR.value)
    if OVERWRITE.value and path and raw.verified(name, path):
        shutil.rmtree(folder, ignore_errors=True)
    splits = datasets.load(name, DATA_DIR.value, cache_dir=CACHE_DIR.value)
    seconds = time.perf_counter() - begin
    shape = splits.train.inputs.shape[1:] or "text"
    counts = f"{len(splits.train.targets)} training and {len(splits.test.targets)} test"
    targets = "speakers" if name == "shakespeare" else "classes"
    print(f"{name}: {counts} examples, {shape}, {splits.classes} {targets}")
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    print(f"  {megabytes:6.1f} MB in {seconds:5.1f} s  {folder}")
    for file, checksum in (cache.origin(folder) or {}).items():
        print(f"  {checksum}  {file}")


def main():
    """Prepares each data set that was asked for."""
    for name in raw.SOURCES if "all" in DATASET.value else DATASET.value:
        prepare(name)


if __name__ == "__main__":
    command.run(main)
