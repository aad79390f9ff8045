"""DP-NormFedAvg on Fashion-MNIST as in Das et al., section 6 and Appendix G.

Command: python -m launch.train --config=configs/das_fashion_mnist.py \
--workdir=/tmp/das --data_dir=DATA
--config.algorithm=dp_fedavg clips instead.
Expect: test accuracy 0.828 (seed 0) at epsilon 5, delta 1e-5; the paper has 0.777.
"""

from configs import default


def get_config():
    """Returns the config: one point of the paper's grid over C and eta_0."""
    config = default.get_config()
    config.algorithm = "dp_normfedavg"
    config.rounds = 100
    config.eval_every = 1
    config.data.name = "fashion_mnist"
    config.data.clients = 3000
    config.data.partition = "label_shards"
    config.data.per_client = 5
    config.model.name = "logistic"
    config.model.weight_decay = 1e-4
    config.cohort.sampling = "poisson"
    config.cohort.size = 600
    config.client.steps = 20
    config.client.batch = 20  # all examples of a client
    config.client.batches = "whole"
    config.client.rate = 0.016
    config.client.decay = 0.99
    config.server.optimizer = "momentum"
    config.server.b1 = 0.8
    config.server.rate = 1.0  # times the rate of the clients
    config.privacy.threshold = 62.5
    config.privacy.target_epsilon = 5.0
    config.privacy.accountant = "rdp"
    config.privacy.randomness = "seed"  # a simulation that can be repeated
    return config
