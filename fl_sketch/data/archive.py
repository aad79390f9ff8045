"""Any data as one npz file: features that a network made of images, say.

The file holds `train_inputs` and `test_inputs`, float32 or uint8 [n, ...], and
`train_targets` and `test_targets`, integers [n].
"""

import os
import zipfile

import numpy as np

from fl_sketch import files
from fl_sketch.data import raw
from fl_sketch.data.examples import Examples, Splits

NAME = "npz"
ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


def load(name: str, data_dir: str | os.PathLike | None) -> Splits:
    """Returns the data set "npz/FILE" that the file FILE.npz of a folder holds.

    Args:
      name: the name: "npz/" and that of the file without its ending.
      data_dir: path of the folder; None: that of FL_SKETCH_DATA.

    Raises:
      FileNotFoundError: for a missing folder or file.
      ValueError: for a file that is damaged or holds anything else.
    """
    folder = raw.folder(data_dir)
    if folder is None:
        msg = f"Expected --data_dir to name the folder of {name}.npz, got none."
        raise FileNotFoundError(msg)
    path = folder / f"{name.partition('/')[2]}.npz"
    if not path.is_file():
        msg = f"Expected {path} for data.name={name}, and it is not there."
        raise FileNotFoundError(msg)
    try:
        # Opened here, since numpy leaves a damaged file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {key: found[key] for key in ARRAYS}
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        msg = f"Expected {path} to hold {', '.join(ARRAYS)}, got {error}."
        raise ValueError(msg) from None
    splits = [
        Examples(arrays[f"{part}_inputs"], arrays[f"{part}_targets"].astype(np.int32))
        for part in ("train", "test")
    ]
    for part, (inputs, targets) in zip(("train", "test"), splits, strict=True):
        if str(inputs.dtype) not in ("float32", "uint8") or targets.ndim != 1:
            msg = (
                f"Expected {part} inputs of float32 or uint8 and a target for each in "
                f"{path}, got {inputs.dtype} and targets of shape {targets.shape}."
            )
            raise ValueError(msg)
        if len(inputs) != len(targets) or not len(targets) or targets.min() < 0:
            msg = (
                f"Expected as many {part} targets >= 0 as inputs, at least one, in "
                f"{path}, got {len(targets)} for {len(inputs)}."
            )
            raise ValueError(msg)
    classes = 1 + int(max(targets.max() for _, targets in splits))
    return Splits(name, splits[0], splits[1], classes, learnt=("classes", 0))


def save(path: str | os.PathLike, train: Examples, test: Examples) -> None:
    """Writes a file that `load` reads; a reader never sees half of it.

    Args:
      path: path of the file, which should end in ".npz".
      train: the examples to train on.
      test: the examples to test on.
    """
    with files.replacing(path) as partial, open(partial, "wb") as file:
        arrays = (train.inputs, train.targets, test.inputs, test.targets)
        np.savez(file, **dict(zip(ARRAYS, arrays, strict=True)))
