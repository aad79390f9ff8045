"""Private sums of integers on MNIST: accuracy against bits and sketch sizes.

Command: python -m launch.compare --config=configs/secure_private.py \
--workdir=/tmp/secure_private --data_dir=DATA
Expect: the standings of results/secure_private, once they were run.

The clients, the model and the two promises of configs/compare_private_safl.py, for
cohorts of a fixed size and clients whose data are replaced, whose noise clients draw in
shares: what a secure aggregation could add up. Sketches have powers of two as sizes,
since integers are padded to one. Floats with distributed noise are the line to reach.
"""

from configs import compare_private_safl
from fl_sketch.sweep.comparison import Comparison, Method

EPSILONS = (2.0, 8.0)
SIZES = (65536, 16384, 2048)  # numbers of a message; the model has 199,210
BITS = (10, 12, 16)
KINDS = ("skellam", "discrete_gaussian")
RATES = {"server.rate": (0.003, 0.01, 0.03)}


def get_comparison():
    """Returns floats, and both kinds of noise at all bits, for every sketch size."""
    methods = {}
    for epsilon in EPSILONS:
        for size in SIZES:
            keys = {
                "privacy.target_epsilon": epsilon,
                "privacy.bound": "normalise",
                "sketch.numbers": size,
            }
            name = f"epsilon {epsilon:g}, {size} numbers"
            methods[f"{name}, floats"] = Method(keys, RATES)
            for kind in KINDS:
                for bits in BITS:
                    own = {"privacy.noise": kind, "privacy.bits": bits}
                    methods[f"{name}, {kind}, {bits} bits"] = Method(keys | own, RATES)
    return Comparison(base(), methods)


def base():
    """Returns the config that all methods have in common."""
    config = compare_private_safl.base()
    config.cohort.sampling = "fixed"
    config.privacy.relation = "replace_one"
    config.privacy.noise = "distributed"
    return config
