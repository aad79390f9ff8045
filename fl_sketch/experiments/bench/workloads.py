"""The workloads of all benchmarks of rounds: models, clients and their local work.

Nothing is imported here but Python's own, so that a program in PyTorch can read it
without jax.
"""

from typing import NamedTuple

CLASSES = 10  # of images


class Workload(NamedTuple):
    """A model, its clients and their local work.

    Attributes:
      image: height, width and channels; of a text, its length alone.
      full_batch: whether all steps are on one batch, the client's whole data.
      compression: d over the numbers of a message, where there is a sketch.
      width: the width of the model; 0: the usual.
      depth: the number of blocks of a transformer.
      classes: the number of classes, or of a language model's tokens.
      vocabulary: the number of tokens of an encoder.
    """

    model: str
    image: tuple[int, ...]
    population: int
    cohort: int
    examples: int
    steps: int
    batch: int
    rate: float
    full_batch: bool = False
    compression: int = 20
    width: int = 0
    depth: int = 0
    classes: int = CLASSES
    vocabulary: int = 0


WORKLOADS = {
    "W1": Workload("cnn", (32, 32, 3), 1000, 50, 50, 5, 10, 0.1),
    "W2": Workload("lenet", (28, 28, 1), 50, 25, 1200, 5, 32, 0.05),
    "W3": Workload("logistic", (28, 28, 1), 3000, 600, 20, 20, 20, 0.01, True),
    "W4": Workload("lenet", (28, 28, 1), 1000, 1000, 60, 5, 32, 0.05),
    "W5": Workload("resnet", (32, 32, 3), 5, 5, 10000, 2, 32, 0.1, compression=100),
}
# The same with five million parameters: slow, so it is timed only if it is named.
WORKLOADS["W6"] = WORKLOADS["W5"]._replace(width=72)
USUAL = ("W1", "W2", "W3", "W4", "W5")

# A language model over characters, and MiniLM's shape: the suite of peers alone times
# them.
TEXT = {
    "W7": Workload(
        "language_model", (80,), 100, 20, 80, 5, 16, 0.1, width=128, depth=4, classes=90
    ),
    "W8": Workload(
        "bert",
        (32,),
        population=5,
        cohort=5,
        examples=640,
        steps=2,
        batch=32,
        rate=0.03,
        width=384,
        depth=6,
        classes=2,
        vocabulary=30522,
    ),
}
