"""Writes EfficientNet-Lite0's weights as a folder that hf/FOLDER names.

    python fl_sketch/models/huggingface/from_torch.py FILE.pth FOLDER

It needs torch, numpy and safetensors, in any environment, and nothing of this project.
The statistics of batch normalisation become part of its scales and shifts.
"""

import json
import pathlib
import sys
from collections.abc import Mapping

import numpy as np
from safetensors.numpy import save_file

EPSILON = 1e-3  # added to variances, as this network was trained
CONFIG = {
    "model_type": "efficientnet_lite0",
    "image_size": 224,
    "image_mean": 0.498,
    "image_std": 0.502,
}


def folded(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a model's arrays without statistics: in eval mode it computes the same.

    Args:
      arrays: those of the file, by their names.
    """
    found = dict(arrays)
    for name in arrays:
        place, _, last = name.rpartition(".")
        if last == "num_batches_tracked":
            del found[name]
        if last != "running_mean":
            continue
        mean, variance = found.pop(name), found.pop(f"{place}.running_var")
        scale = arrays[f"{place}.weight"] / np.sqrt(variance + EPSILON)
        found[f"{place}.weight"] = scale
        found[f"{place}.bias"] = arrays[f"{place}.bias"] - mean * scale
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def main(source: str, out: str) -> None:
    """Reads the file `source` and writes the folder `out`."""
    import torch  # pyright: ignore[reportMissingImports]

    tensors = torch.load(source, map_location="cpu", weights_only=True)
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = folded({name: tensor.numpy() for name, tensor in tensors.items()})
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    print(f"{len(arrays)} arrays in {folder / 'model.safetensors'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
