"""What a sketch of one gradient reveals: 20 digits of MNIST, a small smooth network.

Command: python -m launch.attack --config=configs/attack_mnist.py \
--workdir=/tmp/attack --over=sketch.compression=1,2,10,50 --data_dir=DATA
Expect: median PSNR 44, 43, 32 and 6 decibels (seed 0); --smoothness=0.001: 29 at 50.

--config.privacy.bound=clip and --over=privacy.noise_multiplier=... attack one release
of the Gaussian mechanism.
"""

from configs import default


def get_config():
    """Returns the config: the defaults with these changes."""
    config = default.get_config()
    config.algorithm = "safl"
    config.rounds = 1
    config.data.name = "mnist"
    config.data.clients = 1000
    config.model.name = "sigmoid_lenet"
    config.cohort.sampling = "poisson"
    config.cohort.size = 100
    config.client.rate = 1.0
    config.client.steps = 1
    config.client.batch = 1
    return config
