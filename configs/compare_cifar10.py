"""SAFL's Figure 1: SAFL and other compressed methods on CIFAR-10 with a ResNet.

Command: python -m launch.compare --config=configs/compare_cifar10.py \
--workdir=/tmp/compare_cifar10 --data_dir=DATA

After a colon may stand how much smaller messages are than the model, 100 unless told
(configs/compare_cifar10.py:1000). 1-bit Adam has one size, 32 times smaller after its
first rounds, and SAFL at that size beside it. A round has the same examples for all:
two local steps of 32, or one gradient of 64. Every method is tuned over as many rates,
SAFL and FedAdam as in configs/safl_claims.py, the others in all rounds. MARINA's rate
is constant, the others' a cosine. FetchSGD forgets as the code does that its paper
released: subtracted, as printed, errors grow without end where the heaviest of many
estimates share their buckets (on SST-2 within 22 rounds, at rates from 0.01 to 0.3:
--set=sketch.forget=subtract --set=sketch.masking=false). `momentum` is SGD with it on
whole gradients: what FetchSGD and MARINA would be uncompressed.
"""

from configs import safl_claims
from fl_sketch.experiment.comparison import Comparison, Method

SGD_RATES = {"cifar10": (0.03, 0.1, 0.3), "sst2": (0.03, 0.1, 0.3, 1.0)}
# Its random numbers are a hundred times what they were.
MARINA_RATES = {"cifar10": (0.003, 0.01, 0.03), "sst2": (0.003, 0.01, 0.03, 0.1)}
COCKTAIL_RATES = {"cifar10": (0.3, 1.0, 3.0), "sst2": (0.1, 0.3, 1.0, 3.0)}
WARMUP = 0.1  # the share of 1-bit Adam's rounds that are Adam's


def get_comparison(which: str = "100"):
    """Returns the methods, unsketched FedAdam first."""
    return of_task("cifar10", which)


def of_task(task: str, which: str) -> Comparison:
    """Returns the methods on one of the tasks of `safl_claims`."""
    if not which.isdigit() or int(which) < 1:
        msg = f"Expected a compression after the colon, 100 say, got {which}."
        raise ValueError(msg)
    base = safl_claims.get_config(f"{task},100x")
    adam = {"server.rate": safl_claims.RATES[task]}
    sgd = {"server.rate": SGD_RATES[task]}
    compressed = {"compressor.compression": float(which)}
    # Of the same examples in a round, for methods without local steps.
    batch = base.client.steps * base.client.batch
    gradient = {"client.steps": 1, "client.batch": batch}

    def safl(compression):
        return Method({"sketch.compression": float(compression)}, adam)

    def other(name, rates, **keys):
        return Method({"algorithm": name, **compressed, **keys}, rates, whole=True)

    methods = {
        "fedadam": Method({"algorithm": "fedopt"}, adam),
        f"{which}x": safl(which),
        "32x": safl(32),
        "momentum": Method(
            {
                "algorithm": "fedopt",
                "server.optimizer": "momentum",
                "client.rate": 1.0,
                **gradient,
            },
            sgd,
            whole=True,
        ),
        "fetchsgd": Method(
            {
                "algorithm": "fetchsgd",
                "sketch.compression": float(which),
                "sketch.rows": 5,
                "sketch.forget": "zero",
                "sketch.masking": True,
                **gradient,
            },
            sgd,
            whole=True,
        ),
        "marina": other(
            "marina",
            {"server.rate": MARINA_RATES[task]},
            **{
                "compressor.name": "random_k",
                # Half of its bits go into rare whole gradients.
                "compressor.compression": 2 * float(which),
                "compressor.probability": 1 / (2 * float(which)),
                "server.schedule": "constant",
                **gradient,
            },
        ),
        "cocktail": other("cocktail_sgd", {"server.rate": COCKTAIL_RATES[task]}),
        "cd_adam": other("cd_adam", adam, **gradient),
        "onebit_adam": Method(
            {
                "algorithm": "onebit_adam",
                "server.warmup": WARMUP,
                **gradient,
            },
            adam,
            whole=True,
        ),
    }
    return Comparison(base, methods, tuning_rounds=safl_claims.TUNING_ROUNDS[task])
