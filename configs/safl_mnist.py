"""SAFL with 100 times smaller messages on MNIST, 100 clients with uneven labels.

Command: python -m launch.train --config=configs/safl_mnist.py \
--workdir=/tmp/safl_mnist --data_dir=DATA
Expect: test accuracy 0.979 (seed 0), 2.468 kB per client and round, 4.9 MB up.
"""

from configs import default


def get_config():
    """Returns the config: the defaults with these changes."""
    config = default.get_config()
    config.rounds = 200
    config.eval_every = 20
    config.data.name = "mnist"
    config.data.clients = 100
    config.data.partition = "dirichlet"
    config.model.name = "lenet"
    config.client.rate = 0.05
    config.client.steps = 10
    config.client.batch = 32
    config.sketch.compression = 100.0
    return config
