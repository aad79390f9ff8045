"""SAFL with a 100 times smaller message on SST-2: a small transformer, 5 clients.

Command: python -m launch.train --config=configs/safl_sst2.py --workdir=/tmp/sst2
The paper fine-tunes BERT of 100 million parameters at sketch sizes from 2e4 to 2e6;
here the transformer has 628,610 and starts from nothing. --config.model.size=paper is
BERT-base in shape.
"""

from configs import default


def get_config():
    """Returns the config."""
    config = default.get_config()
    config.rounds = 400
    config.eval_every = 40
    config.checkpoint_every = 100
    config.data.name = "sst2"
    config.data.clients = 5
    config.data.length = 48
    config.data.vocabulary = 8192
    config.model.name = "transformer"
    config.model.label_smoothing = 0.1
    config.model.weight_decay = 1e-4
    config.cohort.sampling = "everyone"
    config.client.rate = 0.1
    config.client.steps = 5
    config.client.batch = 32
    config.server.rate = 0.001
    config.server.schedule = "cosine"
    config.server.floor = 1e-5
    config.sketch.compression = 100.0
    return config
