"""Private SAFL on MNIST: accuracy against compression, at two levels of privacy.

Command: python -m launch.compare --config=configs/compare_private_safl.py \
--workdir=/tmp/private_safl --data_dir=DATA
Expect: a table like that of results/private_safl, whose clients were dealt anew
for each seed.

1000 clients have 60 images each, and 200 of them take part in a round. The model is an
MLP of 199,210 parameters. Messages are normalised, noise is added in sketch space, and
the unit of privacy is a client, at delta 1e-5. The first method of each level sends
whole updates.
"""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

COMPRESSIONS = (3.0, 10.0, 30.0, 100.0)
EPSILONS = (2.0, 8.0)
RATES = {"server.rate": (0.003, 0.01, 0.03)}


def get_comparison():
    """Returns all compressions at all levels, and a run without privacy and sketch."""
    methods = {"FedAdam, not private": Method(_plain(0.0), RATES)}
    for epsilon in EPSILONS:
        private = {"privacy.target_epsilon": epsilon, "privacy.bound": "normalise"}
        own = _plain(epsilon) | private
        methods[f"FedAdam, epsilon {epsilon:g}"] = Method(own, RATES)
        for compression in COMPRESSIONS:
            keys = private | {"sketch.compression": compression}
            name = f"SAFL, 1/{compression:g}, epsilon {epsilon:g}"
            methods[name] = Method(keys, RATES)
    return Comparison(base(), methods)


def _plain(epsilon: float):
    """Returns the keys of the same method without a sketch."""
    return {"algorithm": "fedopt", "privacy.target_epsilon": epsilon}


def base():
    """Returns the config that all methods have in common."""
    config = default.get_config()
    config.rounds = 100
    config.eval_every = 10
    config.data.name = "mnist"
    config.data.clients = 1000
    config.model.name = "mlp"
    config.cohort.sampling = "poisson"
    config.cohort.size = 200
    config.client.rate = 0.1
    config.client.steps = 3
    config.privacy.randomness = "seed"  # a simulation that can be repeated
    return config
