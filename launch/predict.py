r"""Predicts classes or numbers for texts, images or arrays with a trained model.

python -m launch.predict --workdir=/tmp/sst2 --text="a fine film"
python -m launch.predict --release=/tmp/private_model --file=images.png --top=1

--file is a file with one text per line, or a png, npy or npz file with one or more
inputs for a model of images or numbers. Each input gets a line: its number, then the
most probable classes with their probabilities, or the predicted numbers.
"""

import pathlib

import numpy as np
from absl import flags

from fl_sketch.core import untrusted_files
from fl_sketch.data.examples import name_of
from fl_sketch.models.metrics import NUMBERS
from fl_sketch.run import predict
from launch import command, options

LOAD = options.trained()
TEXT = flags.DEFINE_multi_string("text", None, "Text to classify. Repeatable.")
FILE = flags.DEFINE_string("file", None, "File of texts, of an image or of arrays.")
TOP = flags.DEFINE_integer("top", 3, "Classes to print per input; 0 = all.", 0)


MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names for numbers of channels


def arrays(file: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the examples of this shape in a png, npy or npz file: [n, *shape]."""
    with untrusted_files.reading(file, f"to hold inputs of shape {shape}"):
        if file.suffix == ".png":
            mode = MODES[shape[-1] if len(shape) == 3 else 0]
            pixels = untrusted_files.picture(file.read_bytes(), mode, ("PNG",))
            found = pixels.reshape(*pixels.shape[:2], -1)
        else:
            with open(file, "rb") as opened:
                found = np.load(opened, allow_pickle=False)
                if file.suffix == ".npz":
                    untrusted_files.require_arrays_fit(file)
                    found = found["inputs" if len(found.files) > 1 else found.files[0]]
        found = found[None] if found.shape == shape else found
        if found.shape[1:] != shape or not len(found):
            msg = f"{found.dtype} of shape {found.shape}"
            raise ValueError(msg)
        return found


def inputs(trained):
    """Returns what --text or --file holds."""
    given = [flag.name for flag in (TEXT, FILE) if flag.value is not None]
    if len(given) != 1:
        msg = f"Expected --text or --file, got {' and '.join(given) or 'neither'}."
        raise ValueError(msg)
    if TEXT.value is not None:
        return TEXT.value
    file = pathlib.Path(str(FILE.value)).expanduser()
    if not file.is_file():
        msg = f"Expected file to name a file, got file={file}, which does not exist."
        raise FileNotFoundError(msg)
    if file.suffix in (".png", ".npy", ".npz") or trained.tokenizer is None:
        return arrays(file, trained.shape)
    with untrusted_files.reading(file, "to hold a text in each line, in UTF-8"):
        return file.read_text(encoding="utf-8").splitlines()


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
