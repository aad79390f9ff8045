r"""Predicts classes or numbers for texts, images or arrays with a trained model.

python -m launch.predict --workdir=/tmp/sst2 --text="a fine film"
python -m launch.predict --release=/tmp/private_model --file=images.png --top=1

--file is a file with one text per line, or a png, npy or npz file with one or more
inputs for a model of images or numbers. Each input gets a line: its number, then the
most probable classes with their probabilities, or the predicted numbers.
"""

import numpy as np
from absl import flags

from fl_sketch.data import example_files
from fl_sketch.data.examples import name_of
from fl_sketch.models.metrics import NUMBERS
from fl_sketch.run import predict
from launch import command, options

LOAD = options.trained()
TEXT = flags.DEFINE_multi_string("text", None, "Text to classify. Repeatable.")
FILE = flags.DEFINE_string("file", None, "File of texts, of an image or of arrays.")
TOP = flags.DEFINE_integer("top", 3, "Classes to print per input; 0 = all.", 0)


def inputs(trained):
    """Returns what --text or --file holds."""
    given = [flag.name for flag in (TEXT, FILE) if flag.value is not None]
    if len(given) != 1:
        msg = f"Expected --text or --file, got {' and '.join(given) or 'neither'}."
        raise ValueError(msg)
    if TEXT.value is not None:
        return TEXT.value
    if FILE.value.endswith(example_files.ENDINGS) or trained.tokenizer is None:
        return example_files.arrays(FILE.value, trained.shape)
    return example_files.lines(FILE.value)


def line(trained, number: int, predicted: np.ndarray) -> str:
    """Returns the line of an input."""
    if trained.kind == NUMBERS:
        said = [f"{value:.6g}" for value in predicted]
    else:
        first = np.argsort(-predicted, kind="stable")[: TOP.value or None]
        names = [name_of(trained.class_names, place) for place in first]
        said = [f"{n} {predicted[c]:.4f}" for n, c in zip(names, first, strict=True)]
    return "  ".join([str(number), *said])


def main():
    """Prints a line for each text or each input of a file."""
    trained = LOAD()
    predictions = predict(trained, inputs(trained))
    for number, predicted in enumerate(predictions, start=1):
        print(line(trained, number, predicted))


if __name__ == "__main__":
    command.run(main, devices=1)
