r"""Converts a federated data set (LEAF, TensorFlow Federated) to one npz file.

python -m launch.import_data --form=femnist --train=leaf/train --test=leaf/test \
    --out=DATA/femnist.npz
python -m launch.import_data --form=next_words --train=stackoverflow_train.h5 \
    --test=stackoverflow_test.h5 --users=1000 --out=DATA/words.npz

--form=femnist reads a folder of LEAF's json files, or fed_emnist_train.h5 of TensorFlow
Federated. next_words and tags read its stackoverflow_train.h5. A config reads the new
file by `data.name=npz/femnist`. Each writer or user is a client.

By default the vocabulary is the most frequent words and tags of the training users.
Private runs refuse such a file, because the vocabulary depends on private data. For
private runs, pass lists of your own with --vocabulary_file and --tags_file.
"""

import numpy as np
from absl import flags

from fl_sketch.core import files
from fl_sketch.data import federated, npz, text
from launch import command

FORMS = {
    "femnist": (federated.femnist, ()),
    "next_words": (federated.next_words, ("words", "length")),
    "tags": (federated.tags, ("words", "labels")),
}
FORM = flags.DEFINE_enum("form", None, list(FORMS), "Data set and task of the files.")
TRAIN = flags.DEFINE_string("train", None, "Folder of json files, or HDF5 file.")
TEST = flags.DEFINE_string("test", None, "The same, with the test examples.")
OUT = flags.DEFINE_string("out", None, "npz file to write.")
USERS = flags.DEFINE_integer("users", 0, "Users to read, by name; 0 = all.", 0)
WORDS = flags.DEFINE_integer("words", 10_000, "Size of the vocabulary.", 4)
LENGTH = flags.DEFINE_integer("length", 20, "Tokens per sentence.", 1)
LABELS = flags.DEFINE_integer("labels", 500, "Number of tags.", 1)
VOCABULARY_FILE = flags.DEFINE_string(
    "vocabulary_file", None, "File with one word per line, instead of --words."
)
TAGS_FILE = flags.DEFINE_string(
    "tags_file", None, "File with one tag per line, instead of --labels."
)
flags.mark_flags_as_required(["form", "train", "test", "out"])


def units(file: flags.FlagHolder, count: flags.FlagHolder):
    """Returns the list in the file that one flag names, or else the other's count."""
    return text.read_vocabulary(file.value, file.name) if file.value else count.value


def main():
    """Reads --train and --test, and writes --out."""
    path = files.writable_file(OUT.value)
    make, names = FORMS[FORM.value]
    values = {"words": units(VOCABULARY_FILE, WORDS), "length": LENGTH.value}
    values["labels"] = units(TAGS_FILE, LABELS)
    options = {name: values[name] for name in names}
    place = federated.Files(TRAIN.value, TEST.value, USERS.value)
    arrays = make(place, **options)
    npz.write(path, arrays)
    users, examples = len(np.unique(arrays["owners"])), len(arrays["owners"])
    print(f"wrote {path}: {examples} training examples of {users} clients")
    for name in arrays.get(npz.LEARNT, ()):
        print(f"note: {name} found in the training data: private runs refuse this file")


if __name__ == "__main__":
    command.run(main, devices=1)
