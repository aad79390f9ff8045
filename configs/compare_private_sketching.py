"""Song et al., Algorithm 2 in training: what noise and sketches cost, for examples.

Command: python -m launch.compare --config=configs/compare_private_sketching.py \
--workdir=/tmp/private_sketching --data_dir=DATA
Expect: standings for three sizes of messages, without privacy and at epsilon 2 and 8.

Ten clients have 6000 images of MNIST each. Each takes four local steps per round, on
600 random images, with noise on the mean of clipped gradients, and sends a sketch of
its update. The model is logistic regression. The paper states Algorithm 2 and its
privacy, and has no experiment with it. Images are drawn without replacement, and one of
them is replaced: by Poisson samples and add_remove, as of clients elsewhere, 4.12 and
1.42 would do as noise multipliers for 17.6 and 5.40.
"""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

EPSILONS = (2.0, 8.0)
COMPRESSIONS = (4.0, 32.0)
RATES = {"client.rate": (0.01, 0.03, 0.1, 0.3, 1.0)}


def get_comparison():
    """Returns message sizes without privacy, and at each epsilon."""
    methods = {}
    for epsilon in (0.0, *EPSILONS):
        level = f"epsilon {epsilon:g}" if epsilon else "not private"
        for compression in (1.0, *COMPRESSIONS):
            keys = {"privacy.target_epsilon": epsilon}
            if not epsilon:
                keys["algorithm"] = "iterative_sketching"
                keys["privacy.unit"] = "client"
            if compression == 1.0:
                keys["sketch.operator"], size = "identity", "no sketch"
            else:
                keys["sketch.compression"], size = compression, f"1/{compression:g}"
            methods[f"{level}, {size}"] = Method(keys, RATES)
    return Comparison(base(), methods, widen=2)


def base():
    """Returns the config that all methods have in common."""
    config = default.get_config()
    config.algorithm, config.rounds, config.eval_every = "private_sketching", 100, 10
    config.data.name, config.data.clients = "mnist", 10
    config.model.name = "logistic"
    config.cohort.sampling = "everyone"
    config.client.steps, config.client.batch = 4, 600
    config.server.rate = 1.0
    config.client.batches = "subsets"
    config.privacy.unit, config.privacy.relation = "example", "replace_one"
    config.privacy.randomness = "seed"  # a simulation that can be repeated
    return config
