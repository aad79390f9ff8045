"""SAFL with 20 times smaller messages, on digits that 20 clients share unevenly.

Command: python -m launch.quickstart
Expect: test accuracy above 0.95 for SAFL and for FedAdam without sketches, in about
four seconds each on two CPU cores (`tests/launch/test_quickstart.py`).
"""

from configs import default


def get_config():
    """Returns the config: the defaults with these changes."""
    config = default.get_config()
    config.algorithm = "safl"
    config.rounds = 200
    config.eval_every = 40
    config.checkpoint_every = 200
    config.data.name = "digits"
    config.data.clients = 20
    config.data.partition = "dirichlet"
    config.data.alpha = 0.5
    config.sketch.operator = "count_sketch"
    config.sketch.compression = 20.0
    return config
