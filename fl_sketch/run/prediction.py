"""What a trained model says of texts, of images, or of rows of numbers."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.models.metrics import CLASSES, NUMBERS
from fl_sketch.run.trained import Trained

TOGETHER = 256  # examples of one call
LEVELS = {"digits": 16}  # data sets of levels of grey, divided by the highest one


def predict(trained: Trained, inputs: Sequence[str] | np.ndarray) -> np.ndarray:
    """Returns predictions of a model, float32 [n, outputs].

    Of classes and of labels these are probabilities, which sum to one over classes.

    Args:
      inputs: texts; or an array [n, ...] as the data set has its inputs. Bytes are
        pixels from 0 to 255. Digits of scikit-learn must be divided by 16.
    """
    if trained.of_places:
        msg = f"Expected a model with one class for an input, got {trained.outputs} "
        raise ValueError(msg + "outputs, of a language model: generate is for it.")
    rows = inputs if isinstance(inputs, np.ndarray) else _encoded(trained, inputs)
    rows = _checked(trained, rows)
    size, found = min(len(rows), TOGETHER), []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        filled = np.resize(part, (size, *part.shape[1:]))  # so that all have one shape
        outputs = np.asarray(trained.apply(trained.variables, filled))
        found.append(outputs[: len(part)])
    outputs = jnp.asarray(np.concatenate(found).reshape(len(rows), -1))
    if trained.kind == NUMBERS:
        return np.asarray(outputs)
    probability = jax.nn.softmax if trained.kind == CLASSES else jax.nn.sigmoid
    return np.asarray(probability(outputs))


def _encoded(trained: Trained, texts: Sequence[str]) -> np.ndarray:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        got = type(texts).__name__
        msg = f"Expected inputs to be an array or a list of texts, got {got}."
        raise TypeError(msg)
    if trained.tokenizer is None or not texts:
        takes, shape = trained.about["inputs"]["dtype"], [*trained.shape]
        msg = f"Expected one input at least, of {takes} of shape {shape}, or of a "
        raise ValueError(msg + f"model with a vocabulary, got {len(texts)} texts.")
    return trained.tokenizer.encode(texts, trained.shape[0])


def _checked(trained: Trained, inputs: np.ndarray) -> np.ndarray:
    """Returns inputs in the type and on the scale that a model was trained on."""
    given, name = trained.about["inputs"], trained.about["dataset"]
    dtype, levels = given["dtype"], LEVELS.get(name)
    if inputs.shape[1:] != trained.shape or not len(inputs):
        wanted = ", ".join(map(str, ("n", *trained.shape)))
        msg = f"Expected inputs of shape [{wanted}], got {[*inputs.shape]}."
        raise ValueError(msg)
    kind, pixels = inputs.dtype.kind, inputs.dtype == np.uint8
    with np.errstate(over="ignore"):
        finite = kind in "fiu" and np.isfinite(inputs.astype(np.float32)).all()
    if not finite:
        msg = f"Expected inputs to be finite numbers of 32 bits, got {inputs.dtype}."
        raise ValueError(msg)
    least, most = inputs.min(), inputs.max()
    got = f"got {inputs.dtype} from {least} to {most}"
    if dtype == "int32":
        if kind == "f" or least < 0 or most >= given["vocabulary"]:
            msg = f"Expected inputs to be tokens from 0 to {given['vocabulary'] - 1}, "
            raise ValueError(msg + f"{got}.")
        return inputs.astype(np.int32)
    if levels:  # whole numbers would be levels of grey
        whole = np.array_equal(inputs, np.rint(inputs))
        if (0 < most <= levels) if pixels else (whole and most > 1):
            msg = "Expected inputs to be bytes from 0 to 255 or floats from 0 to 1, "
            raise ValueError(msg + f"{got}: divide levels of grey by {levels}.")
    if pixels and dtype == "uint8":
        return inputs
    if pixels and not levels:
        msg = f"Expected inputs to be floats as those of {name}, got bytes: save them "
        raise ValueError(msg + "as floats at the scale of the training data, as npy.")
    if dtype == "uint8" and not 0 <= least <= most <= 1:
        msg = f"Expected inputs to be bytes or floats from 0 to 1, {got}."
        raise ValueError(msg)
    return (inputs / 255 if pixels else inputs).astype(np.float32)
