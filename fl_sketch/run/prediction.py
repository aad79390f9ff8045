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
    """Returns what a model predicts, float32 [n, outputs].

    Of classes and of labels these are probabilities, which sum to one over classes.

    Args:
      inputs: texts; or an array [n, ...] as the data set has its inputs. Bytes are
        pixels from 0 to 255. Digits of scikit-learn must be divided by 16.

    Raises:
      ValueError, TypeError: in one line, for inputs that the model does not take, or a
        model of another kind.
    """
    if trained.of_places:
        msg = f"Expected a model with one class for an input, got {trained.outputs} "
        raise ValueError(msg + "outputs, of a language model: generate is for it.")
    rows = _inputs(trained, inputs)
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


def _inputs(trained: Trained, inputs: Sequence[str] | np.ndarray) -> np.ndarray:
    """Returns inputs as the data set has them, or raises."""
    if not isinstance(inputs, np.ndarray):
        return _encoded(trained, inputs)
    shape, dtype = trained.shape, trained.about["inputs"]["dtype"]
    if inputs.shape[1:] != shape or not len(inputs):
        wanted = ", ".join(map(str, ("n", *shape)))
        msg = f"Expected inputs of shape [{wanted}], got {[*inputs.shape]}."
        raise ValueError(msg)
    if dtype == "int32":
        return _tokens(trained, inputs)
    return _floats(inputs, dtype, trained.about["dataset"])


def _encoded(trained: Trained, texts: Sequence[str]) -> np.ndarray:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        got = type(texts).__name__
        msg = f"Expected inputs to be an array or a list of texts, got {got}."
        raise TypeError(msg)
    if trained.tokenizer is None:
        takes, shape = trained.about["inputs"]["dtype"], [*trained.shape]
        hint = " that no vocabulary came with" * (takes == "int32")
        msg = f"Expected inputs of {takes} of shape {shape}{hint}, got texts."
        raise ValueError(msg)
    if not texts:
        msg = "Expected one text at least, got none."
        raise ValueError(msg)
    return trained.tokenizer.encode(texts, trained.shape[0])


def _tokens(trained: Trained, inputs: np.ndarray) -> np.ndarray:
    most = trained.about["inputs"]["vocabulary"]
    whole = inputs.dtype.kind in "iu"
    if not whole or inputs.min() < 0 or inputs.max() >= most:
        got = f"{inputs.min()} to {inputs.max()}" if whole else inputs.dtype
        msg = f"Expected inputs to be tokens from 0 to {most - 1}, got {got}."
        raise ValueError(msg)
    return inputs.astype(np.int32)


def _floats(inputs: np.ndarray, dtype: str, dataset: str) -> np.ndarray:
    """Returns bytes, or finite floats on the scale that the model was trained on."""
    pixels = dtype == "uint8"
    if dataset in LEVELS:
        _require_divided(inputs, LEVELS[dataset])
    if inputs.dtype == np.uint8:
        if not pixels and dataset not in LEVELS:
            msg = f"Expected inputs to be floats as those of {dataset}, got bytes: "
            msg += "save them as floats at the scale of the training data, as npy."
            raise ValueError(msg)
        return inputs if pixels else (inputs / 255).astype(np.float32)
    if inputs.dtype.kind not in "fiu" or not np.isfinite(inputs).all():
        got = inputs.dtype if inputs.dtype.kind not in "fiu" else "others"
        msg = f"Expected inputs to be finite numbers, got {got}."
        raise ValueError(msg)
    if pixels and not 0 <= inputs.min() <= inputs.max() <= 1:
        msg = (
            "Expected inputs to be bytes or floats from 0 to 1, got "
            f"{inputs.dtype} from {inputs.min()} to {inputs.max()}."
        )
        raise ValueError(msg)
    with np.errstate(over="ignore"):
        floats = inputs.astype(np.float32)
    if not np.isfinite(floats).all():
        msg = "Expected inputs to be finite numbers that fit float32, got others."
        raise ValueError(msg)
    return floats


def _require_divided(inputs: np.ndarray, levels: int) -> None:
    """Raises for whole numbers that are levels of grey instead of bytes or floats."""
    if inputs.dtype.kind not in "fiu":
        return
    least, most = inputs.min(), inputs.max()
    pixels = inputs.dtype == np.uint8
    whole = np.array_equal(inputs, np.rint(inputs))
    if (0 < most <= levels) if pixels else (whole and most > 1):
        msg = (
            "Expected inputs to be bytes from 0 to 255 or floats from 0 to 1, got "
            f"{inputs.dtype} from {least} to {most}: divide levels of grey by {levels}."
        )
        raise ValueError(msg)
