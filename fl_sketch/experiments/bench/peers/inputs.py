"""What all programs begin with: examples, initial weights, and who sees what when.

Only numpy is imported, so that a program in PyTorch does not load jax. All is drawn
from seeds, and so the same in every program.

>>> work = WORKLOADS["W3"]
>>> drawn_plan(work, 0).shape, sorted(initial_weights(work))
((600, 1, 20), ['dense/bias', 'dense/kernel'])
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from fl_sketch.experiments.bench import workloads
from fl_sketch.experiments.bench.workloads import Workload

WORKLOADS = workloads.WORKLOADS | workloads.TEXT
SPREAD = 0.02  # of what a transformer embeds
HEADS, BERT_HEADS = 4, 12  # of attention
STAGES, BLOCKS, RESNET_WIDTH = 3, 3, 16  # of a ResNet-20
EPSILON = 1e-6  # of normalisation
WIDENING = 4  # of the hidden layer of a transformer's block

Parameter = tuple[str, tuple[int, ...], str]  # its path, its shape, how it begins


def drawn_examples(work: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Returns bytes of images, or tokens, and their targets."""
    rng = np.random.default_rng(0)
    count = work.population * work.examples
    if work.model == "language_model":
        text = rng.integers(1, work.classes, (count, work.image[0] + 1), np.int32)
        return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])
    if work.model == "bert":  # 0 is padding
        values = rng.integers(1, work.vocabulary, (count, *work.image), np.int32)
    else:
        values = rng.integers(0, 256, (count, *work.image), np.uint8)
    return values, rng.integers(0, work.classes, count, np.int32)


def drawn_plan(work: Workload, number: int) -> np.ndarray:
    """Returns the rows of the examples of a round, [cohort, batches, batch].

    A client passes over its own examples in random order, as often as it needs. With
    `full_batch` there is one batch for all steps.
    """
    rng = np.random.default_rng((1, number))
    batches = 1 if work.full_batch else work.steps
    passes = -(-batches * work.batch // work.examples)
    cohort = rng.permutation(work.population)[: work.cohort].astype(np.int32)
    own = cohort[:, None] * work.examples + np.arange(work.examples, dtype=np.int32)
    rows = np.concatenate([rng.permuted(own, axis=1) for _ in range(passes)], axis=1)
    rows = rows[:, : batches * work.batch]
    return np.ascontiguousarray(rows.reshape(work.cohort, batches, work.batch))


def initial_weights(work: Workload) -> dict[str, np.ndarray]:
    """Returns a model's first parameters by their paths, in the layout of flax."""
    rng = np.random.default_rng(2)
    return {path: _begun(rng, shape, how) for path, shape, how in _parameters(work)}


def length(weights: Mapping[str, np.ndarray]) -> float:
    """Returns the length of a model's parameters, in whatever layout they are."""
    return math.sqrt(sum(np.square(w, dtype=float).sum() for w in weights.values()))


def distance(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """Returns how far two models of one layout are from each other."""
    return length({path: one[path] - other[path] for path in one})


def _begun(rng: np.random.Generator, shape: tuple[int, ...], how: str) -> np.ndarray:
    """Returns a parameter as it begins; "uniform" is Glorot's, by its first axes."""
    if how in ("zeros", "ones"):
        return np.full(shape, how == "ones", np.float32)
    if how == "normal":
        return rng.normal(0, SPREAD, shape).astype(np.float32)
    inside = math.prod(shape[:-2])  # of a kernel's window
    bound = math.sqrt(6 / (inside * (shape[-2] + shape[-1])))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def _parameters(work: Workload) -> Iterator[Parameter]:
    if work.model == "cnn":
        yield from _layer("conv1", (3, 3, 3, 32))
        yield from _layer("conv2", (3, 3, 32, 64))
        yield from _layer("dense1", (12544, 128))
        yield from _layer("dense2", (128, work.classes))
    elif work.model == "lenet":
        yield from _layer("conv1", (5, 5, 1, 6))
        yield from _layer("conv2", (5, 5, 6, 16))
        yield from _layer("dense1", (400, 120))
        yield from _layer("dense2", (120, 84))
        yield from _layer("dense3", (84, work.classes))
    elif work.model == "logistic":  # its kernel is stored by class
        yield "dense/kernel", (work.classes, math.prod(work.image)), "zeros"
        yield "dense/bias", (work.classes,), "zeros"
    elif work.model == "resnet":
        yield from _resnet(work)
    elif work.model == "bert":
        yield from _bert(work)
    else:
        yield from _language_model(work)


def _layer(name: str, kernel: tuple[int, ...]) -> Iterator[Parameter]:
    yield f"{name}/kernel", kernel, "uniform"
    yield f"{name}/bias", kernel[-1:], "zeros"


def _norm(name: str, channels: int) -> Iterator[Parameter]:
    yield f"{name}/scale", (channels,), "ones"
    yield f"{name}/bias", (channels,), "zeros"


def _resnet(work: Workload) -> Iterator[Parameter]:
    before = work.width or RESNET_WIDTH
    yield "conv/kernel", (3, 3, work.image[-1], before), "uniform"
    yield from _norm("norm", before)
    for stage in range(STAGES):
        after = (work.width or RESNET_WIDTH) * 2**stage
        for block in range(BLOCKS):
            name = f"stage{stage + 1}_block{block + 1}"
            yield f"{name}/conv1/kernel", (3, 3, before, after), "uniform"
            yield from _norm(f"{name}/norm1", after)
            yield f"{name}/conv2/kernel", (3, 3, after, after), "uniform"
            yield from _norm(f"{name}/norm2", after)
            before = after
    yield from _layer("dense", (before, work.classes))


def _language_model(work: Workload) -> Iterator[Parameter]:
    width = work.width
    heads = HEADS, width // HEADS
    yield "tokens/embedding", (work.classes, width), "normal"
    yield "positions", (work.image[0], width), "normal"
    for number in range(work.depth):
        block = f"block{number + 1}"
        yield from _norm(f"{block}/norm1", width)
        for part in ("query", "key", "value"):
            yield f"{block}/attention/{part}/kernel", (width, *heads), "normal"
            yield f"{block}/attention/{part}/bias", heads, "zeros"
        yield f"{block}/attention/out/kernel", (*heads, width), "normal"
        yield f"{block}/attention/out/bias", (width,), "zeros"
        yield from _norm(f"{block}/norm2", width)
        yield from _layer(f"{block}/dense1", (width, WIDENING * width))
        yield from _layer(f"{block}/dense2", (WIDENING * width, width))
    yield from _norm("norm", width)
    yield from _layer("dense", (width, work.classes))


def _bert(work: Workload) -> Iterator[Parameter]:
    width, hidden = work.width, WIDENING * work.width
    tables = {"tokens": work.vocabulary, "positions": work.image[0], "types": 2}
    for name, rows in tables.items():
        yield f"{name}/embedding", (rows, width), "normal"
    yield from _norm("norm", width)
    for number in range(work.depth):
        block = f"block{number + 1}"
        for part in ("query", "key", "value", "output"):
            yield from _layer(f"{block}/{part}", (width, width))
        yield from _norm(f"{block}/norm1", width)
        yield from _layer(f"{block}/dense1", (width, hidden))
        yield from _layer(f"{block}/dense2", (hidden, width))
        yield from _norm(f"{block}/norm2", width)
    yield from _layer("dense", (width, work.classes))
