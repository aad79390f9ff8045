"""Private SAFL: normalised sketches and noise in sketch space, on 1437 digits.

Command: python -m launch.train --config=configs/private_safl.py --workdir=/tmp/private
Expect: test accuracy about 0.94 (each run draws other noise), with 5 times fewer
numbers up, in seconds.
"""

from configs import default


def get_config():
    """Returns the config: the defaults with these changes."""
    config = default.get_config()
    config.rounds = 100
    config.eval_every = 20
    config.data.clients = 400
    config.model.name = "logistic"
    config.cohort.sampling = "poisson"
    config.cohort.size = 100
    config.client.batch = 4
    config.client.batches = "whole"
    config.server.rate = 0.03
    config.sketch.compression = 5.0
    config.privacy.bound = "normalise"
    config.privacy.target_epsilon = 8.0
    return config
