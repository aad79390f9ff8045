r"""Converts a data set of LEAF, TensorFlow Federated or TFDS to a folder of npy files.

python -m launch.prepare_data --form=femnist --train=leaf/train --test=leaf/test \
    --out=DATA/femnist
python -m launch.prepare_data --form=next_words --train=stackoverflow_train.h5 \
    --test=stackoverflow_test.h5 --users=1000 --out=DATA/words
python -m launch.prepare_data --form=tfds --train=~/tensorflow_datasets/mnist/3.0.1 \
    --out=DATA/tfds_mnist

A config reads the folder by `data.name=npz/femnist`. femnist reads a folder of LEAF's
json files, or fed_emnist_train.h5 of TensorFlow Federated; next_words reads its
stackoverflow_train.h5. Each writer or user is a client. tfds reads the folder of a data
set with one image or text and one label, prepared with file_format="array_record".

By default the vocabulary is the most frequent words of the training users. Private runs
refuse such data, because the vocabulary depends on them: pass them --vocabulary_file.
"""

import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import flags

from fl_sketch.core import tokens, untrusted_files
from fl_sketch.data import npz, text, tokenizer
from launch import command

FORM = flags.DEFINE_enum(
    "form", None, ["femnist", "next_words", "tfds"], "Form of the files."
)
TRAIN = flags.DEFINE_string("train", "", "Folder, or HDF5 file.")
TEST = flags.DEFINE_string("test", "", "The same, with the test examples.")
OUT = flags.DEFINE_string("out", "", "Folder to write, which is new.")
USERS = flags.DEFINE_integer("users", 0, "Users to read, by name; 0 = all.", 0)
WORDS = flags.DEFINE_integer("words", 10_000, "Size of the vocabulary.", 4)
LENGTH = flags.DEFINE_integer("length", 20, "Tokens per sentence.", 1)
VOCABULARY_FILE = flags.DEFINE_string(
    "vocabulary_file", None, "File with one word per line, instead of --words."
)
flags.mark_flag_as_required("form")

FEATURES = "tensorflow_datasets.core.features."  # modules of TFDS's own features


def users(path: str) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of each user of LEAF's json files, or of an HDF5 file."""
    place = pathlib.Path(path).expanduser()
    if place.is_dir():
        found: dict[str, Any] = {}
        for file in sorted(place.glob("*.json")):
            with untrusted_files.reading(file, "to hold user_data, as LEAF's files do"):
                new = json.loads(file.read_text())["user_data"]
                if twice := found.keys() & new.keys():
                    msg = f"user {min(twice)} of another file"
                    raise ValueError(msg)
                found |= new
        for name in sorted(found)[: USERS.value or None]:
            yield name, found[name]
        return
    import h5py

    with untrusted_files.reading(path, "to be an HDF5 file"), h5py.File(place) as file:
        examples: Any = file["examples"]
        for name in sorted(examples)[: USERS.value or None]:
            yield name, {key: examples[name][key][()] for key in examples[name]}


def of_users(read: Callable[[Any], tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Returns the arrays of all users; `read` returns inputs and targets of one."""
    arrays = {}
    for part, path in (("train", TRAIN.value), ("test", TEST.value)):
        owners, pairs = [], []
        for name, user in users(path):
            with untrusted_files.reading(path, f"to hold examples of user {name}"):
                pairs.append(read(user))
            owners += [name] * len(pairs[-1][1])
        if not pairs:
            msg = f"Expected a folder of json files or an HDF5 file, got {path}."
            raise ValueError(msg)
        inputs, targets = map(np.concatenate, zip(*pairs, strict=True))
        arrays |= {f"{part}_inputs": inputs, f"{part}_targets": targets}
        if part == "train":
            arrays[npz.OWNERS] = np.array(owners)
    return arrays


def femnist() -> dict[str, Any]:
    """Returns images as bytes, 255 where there is ink, and a client for each writer."""

    def read(user):
        pixels, labels = ("pixels", "label") if "pixels" in user else ("x", "y")
        white = np.asarray(user[pixels], np.float64).reshape(-1, 28, 28, 1)
        if not (white.min() >= 0 and white.max() <= 1):
            msg = "pixels that are not from 0 to 1"
            raise ValueError(msg)
        ink = np.rint(255 * (1 - white)).astype(np.uint8)
        return ink, np.asarray(user[labels]).reshape(-1).astype(np.int32)

    return of_users(read)


def sentences(user: Any) -> list[list[str]]:
    """Returns the words of each sentence of a user."""
    return [tokenizer.words(line.decode()) for line in user["tokens"]]


def next_words() -> dict[str, Any]:
    """Returns StackOverflow's sentences: each word is predicted from those before."""
    learnt = {}
    if VOCABULARY_FILE.value:
        known = text.read_vocabulary(VOCABULARY_FILE.value)
    else:
        each = (sentences(user) for _, user in users(TRAIN.value))
        most = WORDS.value - tokens.SPECIAL
        known = text.vocabulary(itertools.chain.from_iterable(each), most)
        learnt = {npz.LEARNT: np.array(["vocabulary"])}
        if len(known) < most:
            msg = f"Expected words <= {len(known) + tokens.SPECIAL}, as {TRAIN.value} "
            raise ValueError(msg + f"has with {tokens.SPECIAL} special tokens.")

    def read(user):
        table = tokenizer.encode(sentences(user), known, length=LENGTH.value + 1)
        return table[:, :-1], table[:, 1:]

    return of_users(read) | {npz.VOCABULARY: np.array(known)} | learnt


def tfds() -> dict[str, Any]:
    """Returns a data set of TFDS, which needs no TensorFlow; test may be validation."""
    from tensorflow_datasets import features
    from tensorflow_datasets.core import read_only_builder

    folder = pathlib.Path(TRAIN.value).expanduser()

    def check(entry):  # TFDS imports what the file names: a foreign one would run code
        for name in (entry.get("pythonClassName"), entry.get("type")):
            if "." in str(name) and not str(name).startswith(FEATURES):
                msg = f"Expected {folder} to name classes of {FEATURES}*, got {name}."
                raise ValueError(msg)
        return entry

    with untrusted_files.reading(folder, "to be as TFDS leaves it, as array_record"):
        for file in folder.rglob("features.json"):
            json.loads(file.read_text(), object_hook=check)
        builder: Any = read_only_builder.builder_from_directory(folder)
        own = builder.info.features
        kinds = (features.Image, features.Text), (features.ClassLabel, features.Scalar)
        pair = builder.info.supervised_keys or [
            next(key for key, one in own.items() if isinstance(one, kind))
            for kind in kinds
        ]
        splits = builder.info.splits
        held = next(part for part in ("test", "validation") if part in splits)
        arrays = {}
        for part, split in (("train", "train"), ("test", held)):
            records = list(builder.as_data_source(split))
            for kind, key in zip(npz.KINDS, pair, strict=True):
                arrays[f"{part}_{kind}"] = np.stack([one[key] for one in records])
        names = getattr(own[pair[1]], "names", None)
        return arrays | ({npz.CLASS_NAMES: np.array(names)} if names else {})


def main():
    """Reads --train and --test, and writes --out."""
    named = TRAIN.value and OUT.value and (TEST.value or FORM.value == "tfds")
    if not named or pathlib.Path(OUT.value).exists():
        msg = f"Expected --train, --test and a new folder --out, got {TRAIN.value!r}, "
        raise ValueError(msg + f"{TEST.value!r} and {OUT.value!r}.")
    makers = {"femnist": femnist, "next_words": next_words, "tfds": tfds}
    arrays = makers[str(FORM.value)]()
    npz.write(OUT.value, arrays)
    examples, owners = len(arrays["train_targets"]), arrays.get(npz.OWNERS)
    clients = "" if owners is None else f" of {len(np.unique(owners))} clients"
    print(f"wrote {OUT.value}: {examples} training examples{clients}")
    if npz.LEARNT in arrays:
        print("note: vocabulary found in the training data: private runs refuse it")


if __name__ == "__main__":
    command.run(main, devices=1)
