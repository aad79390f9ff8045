"""The models in PyTorch, as functions of their parameters.

Images are in NCHW order and kernels as PyTorch has them. The parameters keep the paths
that they have in flax.
"""

# pyright: reportMissingImports=false
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from fl_sketch.experiments.bench.peers import inputs
from fl_sketch.experiments.bench.workloads import Workload

Params = Mapping[str, torch.Tensor]
GROUPS, EPSILON = 8, inputs.EPSILON  # of normalisation, as in `models`
FLAT = {"cnn": (14, 14, 64), "lenet": (5, 5, 16)}  # what goes into the layer dense1


def loss_of(
    work: Workload,
) -> Callable[[Params, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Returns `(params, inputs, targets) -> scalar`, the mean cross-entropy."""
    logits = {
        "cnn": _cnn,
        "lenet": _lenet,
        "logistic": _logistic,
        "resnet": _resnet,
        "language_model": lambda p, x: _language_model(p, x, work.depth),
        "bert": lambda p, x: _bert(p, x, work.depth),
    }[work.model]

    def loss(params, inputs, targets):
        outputs = logits(params, inputs)
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    return loss


def first_params(work: Workload, device: str) -> dict[str, torch.Tensor]:
    """Returns the initial weights in PyTorch's layout."""
    return {
        path: torch.from_numpy(_in_layout(work, path, weight)).to(device)
        for path, weight in inputs.initial_weights(work).items()
    }


def examples(work: Workload, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images as floats, or tokens, and their targets, on a device."""
    values, targets = inputs.drawn_examples(work)
    x, y = torch.from_numpy(values).to(device), torch.from_numpy(targets).to(device)
    if x.dtype == torch.uint8:
        x = x.permute(0, 3, 1, 2).contiguous().float() / 255
    return x if x.is_floating_point() else x.long(), y.long()


def _in_layout(work: Workload, path: str, weight: np.ndarray) -> np.ndarray:
    if path == "dense1/kernel" and work.model in FLAT:  # its inputs are in HWC order
        parts = weight.reshape(*FLAT[work.model], -1)
        weight = np.moveaxis(parts, 2, 0).reshape(weight.shape)
    if weight.ndim == 4:
        weight = weight.transpose(3, 2, 0, 1)
    elif "attention/out/kernel" in path:
        weight = weight.reshape(-1, weight.shape[-1]).T
    elif "attention" in path and weight.ndim == 3:
        weight = weight.reshape(len(weight), -1).T
    elif "attention" in path:
        weight = weight.reshape(-1)
    elif path.endswith("/kernel") and work.model != "logistic":
        weight = weight.T
    return np.ascontiguousarray(weight)


def _dense(p: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, p[f"{name}/kernel"], p[f"{name}/bias"])


def _conv(p: Params, name: str, x: torch.Tensor, padding: int = 0) -> torch.Tensor:
    return F.conv2d(x, p[f"{name}/kernel"], p[f"{name}/bias"], padding=padding)


def _logistic(p: Params, x: torch.Tensor) -> torch.Tensor:
    return _dense(p, "dense", x.flatten(1))


def _cnn(p: Params, x: torch.Tensor) -> torch.Tensor:
    x = F.relu(_conv(p, "conv1", x))
    x = F.max_pool2d(F.relu(_conv(p, "conv2", x)), 2).flatten(1)
    return _dense(p, "dense2", F.relu(_dense(p, "dense1", x)))


def _lenet(p: Params, x: torch.Tensor) -> torch.Tensor:
    x = F.max_pool2d(F.relu(_conv(p, "conv1", x, padding=2)), 2)
    x = F.max_pool2d(F.relu(_conv(p, "conv2", x)), 2).flatten(1)
    x = F.relu(_dense(p, "dense2", F.relu(_dense(p, "dense1", x))))
    return _dense(p, "dense3", x)


def _resnet(p: Params, x: torch.Tensor) -> torch.Tensor:
    x = F.relu(_by_groups(p, "norm", F.conv2d(x, p["conv/kernel"], padding=1)))
    for stage in range(inputs.STAGES):
        for number in range(inputs.BLOCKS):
            strides = 2 if stage > 0 and number == 0 else 1
            x = _residual(p, f"stage{stage + 1}_block{number + 1}", x, strides)
    return _dense(p, "dense", x.mean((2, 3)))


def _residual(p: Params, name: str, x: torch.Tensor, strides: int) -> torch.Tensor:
    kernels = p[f"{name}/conv1/kernel"], p[f"{name}/conv2/kernel"]
    if strides == 1:
        y = F.conv2d(x, kernels[0], padding=1)
    else:  # zeros at the end alone, as jax has it for even sizes
        y = F.conv2d(F.pad(x, (0, 1, 0, 1)), kernels[0], stride=strides)
    y = F.relu(_by_groups(p, f"{name}/norm1", y))
    y = _by_groups(p, f"{name}/norm2", F.conv2d(y, kernels[1], padding=1))
    more = y.shape[1] - x.shape[1]
    shortcut = x[:, :, ::strides, ::strides]
    return F.relu(y + F.pad(shortcut, (0, 0, 0, 0, 0, more)))


def _by_groups(p: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    groups = math.gcd(GROUPS, x.shape[1])
    return F.group_norm(x, groups, p[f"{name}/scale"], p[f"{name}/bias"], EPSILON)


def _language_model(p: Params, tokens: torch.Tensor, depth: int) -> torch.Tensor:
    x = F.embedding(tokens, p["tokens/embedding"]) + p["positions"]
    for number in range(depth):
        name = f"block{number + 1}"
        x = x + _attention(p, f"{name}/attention", _layer_norm(p, f"{name}/norm1", x))
        y = _dense(p, f"{name}/dense1", _layer_norm(p, f"{name}/norm2", x))
        x = x + _dense(p, f"{name}/dense2", F.gelu(y, approximate="tanh"))
    return _dense(p, "dense", _layer_norm(p, "norm", x))


def _bert(p: Params, tokens: torch.Tensor, depth: int) -> torch.Tensor:
    """Returns logits of texts without padding, by the mean of their tokens."""
    x = F.embedding(tokens, p["tokens/embedding"]) + p["positions/embedding"]
    x = _layer_norm(p, "norm", x + p["types/embedding"][0])
    for number in range(depth):
        name = f"block{number + 1}"
        parts = (
            _dense(p, f"{name}/{part}", x)
            .unflatten(-1, (inputs.BERT_HEADS, -1))
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        y = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = _layer_norm(p, f"{name}/norm1", x + _dense(p, f"{name}/output", y))
        y = _dense(p, f"{name}/dense2", F.gelu(_dense(p, f"{name}/dense1", x)))
        x = _layer_norm(p, f"{name}/norm2", x + y)
    return _dense(p, "dense", x.mean(1))


def _layer_norm(p: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    scale, bias = p[f"{name}/scale"], p[f"{name}/bias"]
    return F.layer_norm(x, x.shape[-1:], scale, bias, EPSILON)


def _attention(p: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    parts = (
        _dense(p, f"{name}/{part}", x).unflatten(-1, (inputs.HEADS, -1)).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    y = F.scaled_dot_product_attention(*parts, is_causal=True)
    return _dense(p, f"{name}/out", y.transpose(1, 2).flatten(2))
