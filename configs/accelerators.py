"""Models of the papers' shapes and one of 1.3 billion parameters, for accelerators.

Command: python -m experiments.accelerators --config=configs/accelerators.py:resnet101 \
--topology=v5e:2x2 --data_dir=DATA
Command: python -m launch.train --config=configs/accelerators.py:resnet101 \
--workdir=/tmp/resnet101 --data_dir=DATA
Expect: the rows of results/accelerators. resnet101 was trained on a GPU, by
configs/compare_resnet101.py. The other models were not trained.

  resnet101   42.5 million parameters on CIFAR-10, messages of 400,000 numbers
  vit         ViT-B's shape on CIFAR-10, messages 100 times smaller
  bert        BERT-base's shape on the words of SST-2, messages 100 times smaller
  billion     a language model of 1.3 billion parameters on eight devices each

Clients compute in bfloat16. The first three have five clients, as in Chen et al., and
two local steps. The last has eight clients.
"""

from configs import default, safl_claims

SHAPES = {
    "resnet101": {
        "model.size": "paper",
        "client.rate": 0.01,  # with 0.1 the loss grows from the first step
        "client.batch": 128,
        "sketch.size": 400_000,
    },
    "vit": {"model.name": "vit", "model.size": "paper", "client.batch": 64},
    "bert": {
        "model.size": "paper",
        "data.vocabulary": 14_820,  # all words of SST-2
        "data.length": 128,
        "client.steps": 2,
    },
    "billion": {
        "rounds": 1000,
        "eval_every": 100,
        "data.name": "shakespeare",
        "data.clients": 8,
        "data.length": 512,
        "data.vocabulary_file": "characters",
        "model.name": "language_model",
        "model.size": "billion",
        "cohort.sampling": "everyone",
        "client.rate": 0.1,
        "client.steps": 2,
        "client.batch": 8,
        "server.rate": 0.001,
        "sketch.compression": 1000.0,
        "compute.model_devices": 8,
    },
}
TASKS = {"resnet101": "cifar10", "vit": "cifar10", "bert": "sst2"}


def get_config(which: str = "resnet101"):
    """Returns the config of a shape.

    Args:
      which: one of `SHAPES`.

    Raises:
      ValueError: for any other text, in one line.
    """
    if which not in SHAPES:
        msg = f"Expected configs/accelerators.py:{'|'.join(SHAPES)}, got {which}."
        raise ValueError(msg)
    if which in TASKS:
        config = safl_claims.get_config(f"{TASKS[which]},100x")
    else:
        config = default.get_config()
    config.update_from_flattened_dict(SHAPES[which])
    config.compute.dtype = "bfloat16"
    return config
