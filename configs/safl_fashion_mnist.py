"""SAFL with 20 times smaller messages on Fashion-MNIST, 50 clients of 2 classes.

Command: python -m launch.train --config=configs/safl_fashion_mnist.py \
--workdir=/tmp/f --data_dir=DATA
Expect: test accuracy 0.80 (seed 0), 12.34 kB per client and round, 24.7 MB up.
"""

from configs import default


def get_config():
    """Returns the config: the defaults with these changes."""
    config = default.get_config()
    config.rounds = 200
    config.eval_every = 20
    config.data.name = "fashion_mnist"
    config.data.clients = 50
    config.data.partition = "classes"
    config.data.per_client = 2
    config.model.name = "lenet"
    config.client.rate = 0.05
    config.client.steps = 5
    config.client.batch = 32
    config.server.optimizer = "paper_amsgrad"
    config.server.rate = 0.003
    config.sketch.compression = 20.0
    return config
