"""SAFL's claims on CIFAR-10 and SST-2, at sizes that train on two cores.

Command: python -m launch.train --config=configs/safl_claims.py:cifar10,100x
  --workdir=/tmp/cifar10_100x
Command: python -m launch.compare --config=configs/safl_claims.py:sst2
  --workdir=/tmp/sst2

After the colon stands a task, and for a single run what is compared:
  10x, 100x, 1000x, tiny   how small the message is; tiny: the paper's 400 and 2000
  fedadam                  the same without a sketch
  sgd                      plain SGD at the server, at 100x
  srht, gaussian           other operators, at 100x
  leaves                   a sketch for each array of parameters, at 100x

--config.model.size=paper takes the paper's models: a ResNet of 42.5 million parameters
and a transformer of BERT-base's shape. The paper has batches of 128 and fine-tunes
BERT; here batches are smaller, and all starts from nothing.
"""

from configs import default
from fl_sketch.experiment.comparison import Comparison, Method

TASKS = {
    "cifar10": {
        "rounds": 600,
        "data.name": "cifar10",
        "model.name": "resnet",
        "client.rate": 0.1,
        "client.steps": 2,
        "client.batch": 32,
        "server.rate": 0.003,
    },
    "sst2": {
        "rounds": 600,
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
TINY = {"cifar10": 400, "sst2": 2000}  # numbers, as in the paper
RATES = {"cifar10": (0.001, 0.003, 0.01), "sst2": (0.0003, 0.001, 0.003)}
SGD_RATES = (0.03, 0.1, 0.3)  # of 1/100 of the coordinates' worth, at 100x
CLAIMS = {
    "10x": {"sketch.compression": 10.0},
    "100x": {"sketch.compression": 100.0},
    "1000x": {"sketch.compression": 1000.0},
    "tiny": {},
    "fedadam": {"algorithm": "fedopt"},
    "sgd": {"server.optimizer": "sgd", "server.rate": 1.0, "server.floor": 0.0},
    "srht": {"sketch.operator": "srht"},
    "gaussian": {"sketch.operator": "gaussian"},
    "leaves": {"sketch.layout": "leaves"},
}


def get_config(which: str = "cifar10,100x"):
    """Returns the config of a task and a claim."""
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
    config.sketch.numbers = TINY[task] if claim == "tiny" else 0
    config.update_from_flattened_dict(TASKS[task])
    config.update_from_flattened_dict(CLAIMS[claim])
    return config


def get_comparison(which: str = "cifar10"):
    """Returns all claims on a task, each with its own server rate."""
    if which not in TASKS:
        msg = f"Expected configs/safl_claims.py:{'|'.join(TASKS)}, got {which}."
        raise ValueError(msg)
    base = get_config(f"{which},100x")
    methods = {}
    for claim, keys in CLAIMS.items():
        numbers = {"sketch.numbers": TINY[which]} if claim == "tiny" else {}
        rates = SGD_RATES if claim == "sgd" else RATES[which]
        methods[claim] = Method({**keys, **numbers}, {"server.rate": rates})
    return Comparison(base, methods, tuning_rounds=base.rounds // 2)
