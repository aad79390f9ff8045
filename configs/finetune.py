"""Fine-tuning: a model trained on half of a data set continues on the other half.

Command: python -m launch.train --config=configs/finetune.py:cifar10 \
--workdir=/tmp/before --data_dir=DATA
Command: python -m launch.compare --config=configs/finetune.py:cifar10 \
--workdir=/tmp/finetune --data_dir=DATA --set=model.init_from=/tmp/before
Command: python -m launch.compare --config=configs/finetune.py:shakespeare,fresh \
--workdir=/tmp/fresh --data_dir=DATA
Expect: the tables of results/finetune.

  cifar10       ResNet-20, from five classes to the other five, five clients
  shakespeare   a language model of characters, from half of the speakers to the others

The first command trains on the first half. The second compares FedAdam with SAFL at
three message sizes on the second half, from that model. The third starts from random
weights. Chen et al. fine-tune a pretrained ViT, and report that sketches are comparable
with whole updates. Here the model of the first half replaces the pretrained model.
"""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

BEFORE = {
    "cifar10": {
        "algorithm": "fedavg",
        "rounds": 250,
        "data.name": "cifar10",
        "data.augment": "crop_flip",
        "model.name": "resnet",
        "cohort.sampling": "everyone",
        "data.clients": 10,
        "client.rate": 0.1,
        "client.steps": 5,
        "client.batch": 32,
        "server.rate": 1.0,
    },
    "shakespeare": {
        "algorithm": "fedopt",
        "rounds": 1500,
        "data.name": "shakespeare",
        "data.partition": "natural",
        "data.clients": 0,
        "data.length": 80,
        "data.vocabulary_file": "characters",
        "model.name": "language_model",
        "cohort.size": 10,
        "client.rate": 0.1,
        "client.steps": 5,
        "client.batch": 10,
        "server.rate": 0.003,
    },
}
AFTER = {
    "cifar10": {
        "rounds": 200,
        "data.clients": 5,
        "client.rate": 0.03,
        "client.steps": 2,
        "client.batch": 32,
    },
    "shakespeare": {"rounds": 200},
}
RATES = (0.0003, 0.001, 0.003)
COMPRESSIONS = (10.0, 100.0, 1000.0)


def get_config(which: str = "cifar10"):
    """Returns the config of the training on the first half.

    Args:
      which: one of `BEFORE`.

    Raises:
      ValueError: for any other text, in one line.
    """
    if which not in BEFORE:
        msg = f"Expected configs/finetune.py:{'|'.join(BEFORE)}, got {which}."
        raise ValueError(msg)
    config = default.get_config()
    config.eval_every = 50
    config.data.part = "1/2"
    config.update_from_flattened_dict(BEFORE[which])
    return config


def get_comparison(which: str = "cifar10"):
    """Returns FedAdam and SAFL on the second half, each with its own rates.

    Args:
      which: one of `BEFORE`, with an optional ",fresh" for random initial weights.

    Raises:
      ValueError: for any other text, in one line.
    """
    task, _, fresh = which.partition(",")
    if fresh not in ("", "fresh"):
        msg = f"Expected configs/finetune.py:{'|'.join(BEFORE)}[,fresh], got {which}."
        raise ValueError(msg)
    base = get_config(task)
    base.algorithm = "safl"
    base.data.part = "2/2"
    base.server.schedule = "cosine"
    base.server.floor = 1e-5
    base.update_from_flattened_dict(AFTER[task])
    if task == "cifar10" and not fresh:
        base.model.fresh = "dense"  # it has other classes
    tune = {"server.rate": RATES}
    methods = {"FedAdam": Method({"algorithm": "fedopt"}, tune)}
    for compression in COMPRESSIONS:
        keys = {"sketch.compression": compression}
        methods[f"SAFL, 1/{compression:g}"] = Method(keys, tune)
    return Comparison(base, methods, widen=4)
