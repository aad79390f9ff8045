r"""Makes one npz file of a federated data set that others distribute.

python -m launch.import_data --form=femnist --train=leaf/train --test=leaf/test \
    --out=DATA/femnist.npz
python -m launch.import_data --form=next_words --train=stackoverflow_train.h5 \
    --test=stackoverflow_test.h5 --users=1000 --out=DATA/words.npz

femnist reads a folder of LEAF's json files, or fed_emnist_train.h5 of TensorFlow
Federated; next_words and tags read its stackoverflow_train.h5. The file is then
`data.name=npz/femnist`, with a client for each writer or user.

Words and tags are the most frequent ones of the training users, and private runs refuse
a file that has them. For private runs, --vocabulary_file and --tags_file list them.
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
FORM = flags.DEFINE_enum("form", None, list(FORMS), "What the files hold.")
TRAIN = flags.DEFINE_string("train", None, "A folder of json files, or an HDF5 file.")
TEST = flags.DEFINE_string("test", None, "The same of the examples to test on.")
OUT = flags.DEFINE_string("out", None, "The npz file.")
USERS = flags.DEFINE_integer("users", 0, "How many, the first by name; 0: all.", 0)
WORDS = flags.DEFINE_integer("words", 10_000, "How many words count.", 4)
LENGTH = flags.DEFINE_integer("length", 20, "The tokens of a sentence.", 1)
LABELS = flags.DEFINE_integer("labels", 500, "How many tags count.", 1)
VOCABULARY_FILE = flags.DEFINE_string(
    "vocabulary_file", None, "A file with a word in each line, in place of --words."
)
TAGS_FILE = flags.DEFINE_string(
    "tags_file", None, "A file with a tag in each line, in place of --labels."
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
    print(f"{examples} examples of {users} clients to train on in {path}")
    for name in arrays.get(npz.LEARNT, ()):
        print(f"the {name} was found in the training data: private runs refuse it")


if __name__ == "__main__":
    command.run(main, devices=1)
