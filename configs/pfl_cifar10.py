"""The CIFAR-10 benchmark of pfl-research, with and without sketches.

Command: python -m launch.train --config=configs/pfl_cifar10.py:100x \
--workdir=/tmp/pfl_cifar10 --data_dir=DATA
Expect: the table of results/pfl_cifar10, in about 40 minutes a run on two cores.

1000 clients have 50 images each, and 50 clients per round are drawn with replacement.
They train one epoch in batches of 10 at rate 0.1. The model is a CNN of 1,626,442
parameters with dropout and Glorot uniform kernels, and channels are standardised by the
training set. This is the benchmark's configuration, which has FedAvg alone, at server
rate 1:

  fedavg                   the benchmark
  fedadam                  Adam at the server
  10x, 100x, 1000x         SAFL, messages 10, 100 or 1000 times smaller than the model
  unlike,fedavg ...        the same, clients with classes from Dirichlet(0.1)

Adam's rates were tuned in 300 rounds: configs/compare_pfl_cifar10.py.

Reference: Granqvist et al. (2024), pfl-research: simulation framework for accelerating
research in private federated learning.
"""

from configs import default

METHODS = {
    "fedavg": {"algorithm": "fedavg", "server.rate": 1.0},
    "fedadam": {"algorithm": "fedopt", "server.rate": 0.003},
    "10x": {"sketch.compression": 10.0, "server.rate": 0.003},
    "100x": {"sketch.compression": 100.0, "server.rate": 0.003},
    "1000x": {"sketch.compression": 1000.0, "server.rate": 0.003},
}
UNLIKE = {"data.partition": "mixtures", "data.alpha": 0.1}


def get_config(which: str = "100x"):
    """Returns the config of a method.

    Args:
      which: one of `METHODS`, after "unlike," for clients that differ.

    Raises:
      ValueError: for any other text, in one line.
    """
    unlike, _, method = which.rpartition(",")
    if method not in METHODS or unlike not in ("", "unlike"):
        allowed = f"[unlike,]{'|'.join(METHODS)}"
        msg = f"Expected configs/pfl_cifar10.py:{allowed}, got {which}."
        raise ValueError(msg)
    config = default.get_config()
    config.rounds = 1500
    config.eval_every = 50
    config.data.name = "cifar10"
    config.data.clients = 1000
    config.data.standardise = "train"
    config.model.name = "cnn"
    config.model.dropout = 0.5
    config.model.kernels = "glorot_uniform"
    config.cohort.sampling = "replacement"
    config.cohort.size = 50
    config.client.rate = 0.1
    config.client.steps = 5
    config.client.batch = 10
    config.client.batches = "subsets"
    config.update_from_flattened_dict(METHODS[method])
    config.update_from_flattened_dict(UNLIKE if unlike else {})
    return config
