"""FedAdam on the next characters of Shakespeare, one client for each of 299 speakers.

Command: python -m launch.train --config=configs/shakespeare.py \
--workdir=/tmp/bard --data_dir=DATA
Expect: test accuracy 0.346 after 300 rounds (seed 0), still rising.

With --config.algorithm=safl, clients send sketches.
"""

from configs import default


def get_config():
    """Returns the config: the defaults with these changes."""
    config = default.get_config()
    config.algorithm = "fedopt"
    config.rounds = 300
    config.eval_every = 50
    config.data.name = "shakespeare"
    config.data.clients = 299
    config.data.partition = "natural"
    config.data.length = 80
    config.model.name = "language_model"
    config.cohort.size = 10
    config.client.rate = 0.1
    config.client.steps = 5
    config.client.batch = 10
    config.server.rate = 0.003
    return config
