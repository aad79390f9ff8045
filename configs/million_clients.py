"""FedAvg on a million clients with one to a thousand generated examples each.

It shows that memory and speed of a round do not depend on the population.

Command: python -m launch.train --config=configs/million_clients.py --workdir=/tmp/many
Expect: test accuracy 0.78 (seed 0), 34.0 MB up, in ten seconds on two cores.
"""

from configs import default


def get_config():
    """Returns the config: the defaults with these changes."""
    config = default.get_config()
    config.algorithm = "fedavg"
    config.rounds = 1000
    config.eval_every = 200
    config.checkpoint_every = 1000  # of 36 MB, since bytes are counted for every client
    config.data.name = "synthetic/3000000"
    config.data.clients = 1_000_000
    config.data.partition = "power_law"
    config.data.exponent = 0.5
    config.model.name = "logistic"
    config.cohort.size = 50
    config.client.rate = 0.3
    config.client.batch = 4
    config.server.rate = 1.0
    return config
