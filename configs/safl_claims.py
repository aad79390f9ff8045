"""SAFL's claims on CIFAR-10 and SST-2, at sizes that train on two cores.

Command: python -m launch.train --config=configs/safl_claims.py:cifar10,100x \
--workdir=/tmp/cifar10_100x --data_dir=DATA
Command: python -m launch.compare --config=configs/safl_claims.py:sst2 \
--workdir=/tmp/sst2 --data_dir=DATA
Expect: tables like those of results/safl_cifar10 and results/safl_sst2.

The argument after the colon is a task, and for a single run the claim:
  10x, 100x, 1000x, tiny   the size of messages; tiny: 20 and 100 numbers
  fedadam                  the same without a sketch
  sgd                      plain SGD at the server, at 100x
  srht, gaussian           other operators, at 1000x
  leaves                   a sketch for each array of parameters, at 100x

The models are a ResNet of 8 layers (75,290 parameters) and a transformer of 364,418.
--config.model.size=paper selects the paper's models: a ResNet of 42.5 million
parameters and BERT-base's shape. The paper has batches of 128, at least 400 and 2000
numbers per message, and does not say whether its BERT was pretrained. Here batches are
smaller, and initial weights are random.
"""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

TASKS = {
    "cifar10": {
        "rounds": 400,
        "data.name": "cifar10",
        "model.name": "resnet",
        "model.size": "tiny",
        "client.rate": 0.1,
        "client.steps": 2,
        "client.batch": 32,
        "server.rate": 0.003,
    },
    "sst2": {
        "rounds": 300,
        "data.name": "sst2",
        "data.length": 32,
        "data.vocabulary": 4096,
        "model.name": "transformer",
        "client.rate": 0.05,
        "client.steps": 5,
        "client.batch": 32,
        "server.rate": 0.001,
    },
}
TINY = {"cifar10": 20, "sst2": 100}  # numbers
RATES = {"cifar10": (0.003, 0.01, 0.03), "sst2": (0.001, 0.003, 0.01, 0.03)}
TOO_LONG = {("sst2", "gaussian")}  # 132 million random numbers per message
SGD_RATES = {"cifar10": (0.3, 1.0, 3.0), "sst2": (0.1, 0.3, 1.0, 3.0)}
CLAIMS = {
    "10x": {"sketch.compression": 10.0},
    "100x": {"sketch.compression": 100.0},
    "1000x": {"sketch.compression": 1000.0},
    "tiny": {},
    "fedadam": {"algorithm": "fedopt"},
    "sgd": {"server.optimizer": "sgd", "server.rate": 1.0, "server.floor": 0.0},
    "srht": {"sketch.operator": "srht", "sketch.compression": 1000.0},
    "gaussian": {"sketch.operator": "gaussian", "sketch.compression": 1000.0},
    "leaves": {"sketch.layout": "leaves"},
}


def name_of(task: str, claim: str) -> str:
    """Returns the name of a claim in tables and pictures.

    >>> name_of("cifar10", "100x"), name_of("sst2", "tiny")
    ('SAFL, 1/100', 'SAFL, 100 numbers')
    """
    names = {
        "tiny": f"SAFL, {TINY[task]} numbers",
        "fedadam": "FedAdam",
        "sgd": "SAFL, 1/100, SGD at the server",
        "srht": "SAFL, 1/1000, SRHT",
        "gaussian": "SAFL, 1/1000, Gaussian",
        "leaves": "SAFL, 1/100, each array by itself",
    }
    return names.get(claim, f"SAFL, 1/{claim.removesuffix('x')}")


def get_config(which: str = "cifar10,100x"):
    """Returns the config of a task and a claim.

    Args:
      which: one of `TASKS` and one of `CLAIMS`, with a comma between them.

    Raises:
      ValueError: for any other text, in one line.
    """
    task, _, claim = which.partition(",")
    if task not in TASKS or claim not in CLAIMS:
        allowed = f"{'|'.join(TASKS)},{'|'.join(CLAIMS)}"
        msg = f"Expected configs/safl_claims.py:{allowed}, got {which}."
        raise ValueError(msg)
    config = default.get_config()
    config.eval_every = 50
    config.checkpoint_every = 100
    config.data.clients = 5
    config.cohort.sampling = "everyone"
    config.model.label_smoothing = 0.1
    config.model.weight_decay = 1e-4
    config.server.schedule = "cosine"
    config.server.floor = 1e-5
    config.sketch.compression = 100.0
    config.sketch.size = TINY[task] if claim == "tiny" else 0
    config.update_from_flattened_dict(TASKS[task])
    config.update_from_flattened_dict(CLAIMS[claim])
    return config


def get_comparison(which: str = "cifar10"):
    """Returns all claims on a task, each tuned over its own server rates.

    Tuning uses all rounds, since a quarter of them chose rates that were too large. It
    continues until the best rate is not at an end.

    Args:
      which: one of `TASKS`.

    Raises:
      ValueError: for any other text, in one line.
    """
    if which not in TASKS:
        msg = f"Expected configs/safl_claims.py:{'|'.join(TASKS)}, got {which}."
        raise ValueError(msg)
    base = get_config(f"{which},100x")
    methods = {}
    for claim, keys in CLAIMS.items():
        if (which, claim) in TOO_LONG:
            continue
        numbers = {"sketch.size": TINY[which]} if claim == "tiny" else {}
        rates = (SGD_RATES if claim == "sgd" else RATES)[which]
        methods[name_of(which, claim)] = Method(
            {**keys, **numbers}, {"server.rate": rates}
        )
    return Comparison(base, methods, widen=3)
