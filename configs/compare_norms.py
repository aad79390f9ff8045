"""Batch and group normalisation in a ResNet that clients train.

Command: python -m launch.compare --config=configs/compare_norms.py \
--workdir=/tmp/norms --data_dir=DATA
Expect: a table of eight methods, in 90 minutes on two cores.

FedAvg and SAFL on Fashion-MNIST, with similar and with different clients. Each method
is tuned over the same three rates.
"""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

ALGORITHMS = {
    "FedAvg": {"algorithm": "fedavg", "server.rate": 1.0},
    "SAFL, 1/20": {"algorithm": "safl", "server.rate": 0.003},
}
DEALT = {"iid": {}, "dirichlet": {"data.partition": "dirichlet", "data.alpha": 0.3}}
RATES = (0.03, 0.1, 0.3)


def get_comparison():
    """Returns each algorithm with both kinds of normalisation, for two partitions."""
    methods = {
        f"{dealt} {name}, {norm}": Method(
            {**keys, **how, "model.norm": norm}, {"client.rate": RATES}
        )
        for dealt, how in DEALT.items()
        for name, keys in ALGORITHMS.items()
        for norm in ("group", "batch")
    }
    return Comparison(_base(), methods, tuning_rounds=20, last=2)


def _base():
    config = default.get_config()
    config.rounds = 60
    config.eval_every = 10
    config.data.name = "fashion_mnist"
    config.data.clients = 50
    config.model.name = "resnet"
    config.model.size = "tiny"
    config.client.steps = 5
    config.client.batch = 32
    return config
