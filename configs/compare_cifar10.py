"""SAFL's Figure 1: SAFL and other compressed methods on CIFAR-10 with a ResNet.

Command: python -m launch.compare --config=configs/compare_cifar10.py \
--workdir=/tmp/compare_cifar10 --data_dir=DATA
Expect: a table like that of results/peers_cifar10.

An argument after a colon sets how many times smaller messages are than the model, 100
by default (configs/compare_cifar10.py:1000). 1-bit Adam has one size, 32 times smaller
after its first rounds, and SAFL is added at that size. All methods use the same
examples in a round: two local steps of 32, or one gradient of 64. Every method is tuned
over four rates in all rounds, and over more until the best rate is not at an end.

`controls` after the colon (configs/compare_cifar10.py:controls) asks why 1-bit Adam is
ahead: FedAdam with one gradient, and SAFL at 1/8, which is 1-bit Adam's size with its
first rounds, with local steps and with one gradient.

MARINA's rate is constant, and those of the others follow a cosine. FetchSGD forgets as
in the code that was released with its paper. If errors are subtracted, as printed, they
grow without bound when many of the largest estimates share buckets (on SST-2 within 22
rounds, at rates from 0.01 to 0.3: --set=sketch.forget=subtract
--set=sketch.masking=false). `momentum` is SGD with momentum on whole gradients, which
is FetchSGD and MARINA without compression.
"""

from configs import safl_claims
from fl_sketch.sweep.comparison import Comparison, Method

# MARINA scales the random numbers that it sends by a hundred.
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
WARMUP = 0.1  # share of 1-bit Adam's rounds that run Adam


def get_comparison(which: str = "100"):
    """Returns the methods, unsketched FedAdam first.

    Args:
      which: how many times smaller messages are than the model, a whole number, or
        "controls".
    """
    return of_task("cifar10", which)


def of_task(task: str, which: str) -> Comparison:
    """Returns the methods on a task, unsketched FedAdam first.

    Args:
      task: one of `safl_claims.TASKS`.
      which: how many times smaller messages are than the model, a whole number, or
        "controls".

    Raises:
      ValueError: in one line, for anything else.
    """
    base = safl_claims.get_config(f"{task},100x")
    # For methods without local steps: the same examples per round.
    batch = base.client.steps * base.client.batch
    gradient = {"client.steps": 1, "client.batch": batch}
    if which == "controls":
        eighth = {"sketch.compression": 8.0}
        controls = {
            "FedAdam, one gradient": ("fedadam", {"algorithm": "fedopt", **gradient}),
            "SAFL, 1/8": ("safl", eighth),
            "SAFL, 1/8, one gradient": ("safl", eighth | gradient),
        }
        methods = {
            name: Method(own, {"server.rate": RATES[task][family]})
            for name, (family, own) in controls.items()
        }
        return Comparison(base, methods, widen=3)
    if not which.isdigit() or int(which) < 1:
        msg = f"Expected a compression after the colon, 100 say, got {which}."
        raise ValueError(msg)
    compression = float(which)
    compressed = {"compressor.compression": compression}
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
            # Half of its bits are for rare whole gradients.
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
