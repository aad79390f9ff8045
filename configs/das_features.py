"""DP-NormFedAvg on features of CIFAR-10, as in Das et al., section 6.

Command: python -m experiments.features --data_dir=DATA --workdir=/tmp/features
Command: python -m launch.train --config=configs/das_features.py \
--workdir=/tmp/das_features --data_dir=/tmp/features

Expect: test accuracy about 0.68 at epsilon 5; results/das_features has the whole grid.

The paper's features are from a ResNet-18 trained on ImageNet, for 5000 clients with 10
examples each. These are from a small network trained on half of CIFAR-10. The other
half is for 2500 clients with 10 examples each. With `:pretrained` the features are from
a network trained on ImageNet (`--weights=FILE`), for 5000 clients.
"""

from configs import das_fashion_mnist

CLIENTS = {"small": 2500, "pretrained": 5000}


def get_config(which: str = "small"):
    """Returns the config: one point of the paper's grid over C and eta_0.

    Args:
      which: small, or pretrained for features that all training images have.

    Raises:
      ValueError: in one line, for any other text.
    """
    if which not in CLIENTS:
        msg = f"Expected configs/das_features.py:{'|'.join(CLIENTS)}, got {which}."
        raise ValueError(msg)
    config = das_fashion_mnist.get_config()
    config.data.name = "npz/cifar10_features"
    config.data.classes = 10
    config.data.clients = CLIENTS[which]
    config.cohort.size = CLIENTS[which] // 5
    config.client.batch = 10  # all examples of a client
    return config
