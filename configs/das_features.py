"""DP-NormFedAvg on features of CIFAR-10, as in Das et al., section 6.

Command: python -m launch.features --data_dir=DATA --out=/tmp/features
Command: python -m launch.train --config=configs/das_features.py \
--workdir=/tmp/das_features --data_dir=/tmp/features

Expect: test accuracy about 0.68 at epsilon 5; results/das_features has the whole grid.

The paper's features are those of a ResNet-18 trained on ImageNet, for 5000 clients of
10 examples. These are of a small network trained on half of CIFAR-10 itself; the
other half has 2500 clients of 10.
"""

from configs import das_fashion_mnist


def get_config():
    """Returns the config: one point of the paper's grid over C and eta_0."""
    config = das_fashion_mnist.get_config()
    config.data.name = "npz/cifar10_features"
    config.data.classes = 10
    config.data.clients = 2500
    config.cohort.size = 500
    config.client.batch = 10  # all that a client has
    return config
