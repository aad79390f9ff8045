"""SAFL's Figure 1: SAFL and other compressed methods on CIFAR-10 with a ResNet.

Command: python -m launch.compare --config=configs/compare_cifar10.py \
--workdir=/tmp/compare_cifar10 --data_dir=DATA
Expect: the table of results/peers_cifar10, in four hours.

After a colon may stand how much smaller messages are than the model, 100 unless told
(configs/compare_cifar10.py:1000). 1-bit Adam has one size, 32 times smaller after its
first rounds, and SAFL at that size beside it. A round has the same examples for all:
two local steps of 32, or one gradient of 64. Every method is tuned over four rates in
all rounds, and over more until worse ones are known on either side.
MARINA's rate is constant, the others' a cosine. FetchSGD forgets as the code does that
its paper released: subtracted, as printed, errors grow without end where the heaviest
of many estimates share their buckets (on SST-2 within 22 rounds, at rates from 0.01 to
0.3: --set=sketch.forget=subtract --set=sketch.masking=false). `momentum` is SGD
with it on whole gradients: what FetchSGD and MARINA would be uncompressed.
"""

from configs import safl_claims
from fl_sketch.sweep.comparison import Comparison, Method

# MARINA's random numbers are a hundred times what they were.
RATES = {
    "cifar10": {
        "fedadam": (0.001, 0.003, 0.01, 0.03),
        "safl": (0.003, 0.01, 0.03, 0.1),
        "momentum": (0.01, 0.03, 0.1, 0.3),
        "fetchsgd": (0.03, 0.1, 0.3, 1.0),
        "marina": (0.001, 0.003, 0.01, 0.03),
        "cocktail": (0.1, 0.3, 1.0, 3.0),
        "cd_adam": (0.003, 0.01, 0.03, 0.1),
        "onebit_adam": (0.0003, 0.001, 0.003, 0.01),
    },
    "sst2": {
        "fedadam": (0.001, 0.003, 0.01, 0.03),
        "safl": (0.001, 0.003, 0.01, 0.03),
        "momentum": (0.003, 0.01, 0.03, 0.1),
        "fetchsgd": (0.03, 0.1, 0.3, 1.0),
        "marina": (0.0003, 0.001, 0.003, 0.01),
        "cocktail": (0.1, 0.3, 1.0, 3.0),
        "cd_adam": (0.001, 0.003, 0.01, 0.03),
        "onebit_adam": (0.0001, 0.0003, 0.001, 0.003),
    },
}
NAMES = {  # in tables and pictures
    "fedadam": "FedAdam",
    "momentum": "momentum SGD",
    "fetchsgd": "FetchSGD",
    "marina": "MARINA",
    "cocktail": "CocktailSGD",
    "cd_adam": "CD-Adam",
    "onebit_adam": "1-bit Adam",
}
WARMUP = 0.1  # the share of 1-bit Adam's rounds that are Adam's


def get_comparison(which: str = "100"):
    """Returns the methods, unsketched FedAdam first.

    Args:
      which: how many times smaller messages are than the model, a whole number.
    """
    return of_task("cifar10", which)


def of_task(task: str, which: str) -> Comparison:
    """Returns the methods on a task, unsketched FedAdam first.

    Args:
      task: one of `safl_claims.TASKS`.
      which: how many times smaller messages are than the model, a whole number.

    Raises:
      ValueError: in one line, for anything but a whole number from 1 on.
    """
    if not which.isdigit() or int(which) < 1:
        msg = f"Expected a compression after the colon, 100 say, got {which}."
        raise ValueError(msg)
    base = safl_claims.get_config(f"{task},100x")
    compression = float(which)
    compressed = {"compressor.compression": compression}
    # Of the same examples in a round, for methods without local steps.
    batch = base.client.steps * base.client.batch
    gradient = {"client.steps": 1, "client.batch": batch}
    safl = {
        f"SAFL, 1/{which}": {"sketch.compression": compression},
        "SAFL, 1/32": {"sketch.compression": 32.0},
    }
    keys = {
        "fedadam": {"algorithm": "fedopt"},
        **safl,
        "momentum": {
            "algorithm": "fedopt",
            "server.optimizer": "momentum",
            "client.rate": 1.0,
            **gradient,
        },
        "fetchsgd": {
            "algorithm": "fetchsgd",
            "sketch.compression": compression,
            "sketch.rows": 5,
            "sketch.forget": "zero",
            "sketch.masking": True,
            **gradient,
        },
        "marina": {
            "algorithm": "marina",
            "compressor.name": "random_k",
            # Half of its bits go into rare whole gradients.
            "compressor.compression": 2 * compression,
            "compressor.probability": 1 / (2 * compression),
            "server.schedule": "constant",
            **gradient,
        },
        "cocktail": {"algorithm": "cocktail_sgd", **compressed},
        "cd_adam": {"algorithm": "cd_adam", **compressed, **gradient},
        "onebit_adam": {
            "algorithm": "onebit_adam",
            "server.warmup": WARMUP,
            **gradient,
        },
    }
    methods = {}
    for name, own in keys.items():
        family = "safl" if name in safl else name
        rates = {"server.rate": RATES[task][family]}
        methods[NAMES.get(name, name)] = Method(own, rates)
    return Comparison(base, methods, widen=3)
