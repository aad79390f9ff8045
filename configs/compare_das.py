"""Das et al., Table 1: clipping against normalisation, on their whole grid.

Command: python -m launch.compare --config=configs/compare_das.py:fashion_mnist,100 \
--workdir=/tmp/das_table1 --data_dir=DATA
Expect: tables like those of results/das_table1 and, for features, results/das_features,
whose clients were dealt anew for each seed.

The argument after the colon is the data and the rounds K, which the paper does not
state. The data are fashion_mnist, features, or pretrained (features of a pretrained
network, see configs/das_features.py). `few` after these selects the 12 points of the
grid with small C and large eta_0, and `beyond` has both bounds with yet smaller C and
larger eta_0 than the paper's, until the best point is inside. The grid over C and eta_0
is one program for each bound and epsilon. Accuracy is the mean over the last 5 rounds.
The last methods show the effect of accounting: they have the noise of the paper's
formula, with 1 as its unstated constant, and the noise that is needed without credit
for sampling clients.
"""

import functools

from configs import das_fashion_mnist, das_features
from fl_sketch.privacy import accounting
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.theory import das

DATA = {
    "fashion_mnist": das_fashion_mnist.get_config,
    "features": das_features.get_config,
    "pretrained": functools.partial(das_features.get_config, "pretrained"),
}
RATES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
THRESHOLDS = (500.0, 250.0, 125.0, 62.5, 31.25, 15.625)
BOUNDS = {"clip": "dp_fedavg", "norm": "dp_normfedavg"}
EPSILONS = (5.0, 1.5)
GRIDS = {
    "": {"client.rate": RATES, "privacy.threshold": THRESHOLDS},
    "few": {"client.rate": RATES[3:], "privacy.threshold": THRESHOLDS[3:]},
    "beyond": {
        "client.rate": (0.128, 0.512, 2.048),
        "privacy.threshold": (15.625, 3.90625, 0.9765625),
    },
}


def get_comparison(which: str = "fashion_mnist,100"):
    """Returns both bounds at both privacy levels, no privacy, and other noises.

    Args:
      which: the data and the rounds, such as "features,100", with ",few" or ",beyond".

    Raises:
      ValueError: for any other text, in one line.
    """
    data, rounds, part, *rest = *which.split(","), "", ""
    if data not in DATA or not rounds.isdigit() or part not in GRIDS or any(rest):
        allowed = f"{'|'.join(DATA)},ROUNDS[,few|,beyond]"
        msg = f"Expected configs/compare_das.py:{allowed}, got {which}."
        raise ValueError(msg)
    base = DATA[data]()
    base.rounds = int(rounds)
    methods = {
        f"{bound}, epsilon {epsilon:g}": Method(
            {"algorithm": algorithm, "privacy.target_epsilon": epsilon},
            GRIDS[part],
        )
        for epsilon in EPSILONS
        for bound, algorithm in BOUNDS.items()
    }
    if part == "beyond":
        return Comparison(base, methods, last=5, widen=4)
    methods["no privacy"] = Method(
        {
            "algorithm": "dp_fedavg",
            "privacy.target_epsilon": 0.0,
            "privacy.threshold": 1e6,
        },
        {"client.rate": RATES},
    )
    good = {"client.rate": RATES[-2:], "privacy.threshold": THRESHOLDS[-2:]}
    for epsilon in EPSILONS:
        theirs, all_clients = noises(base, epsilon)
        noise = _given_noise(theirs)
        methods[f"norm, the paper's noise for epsilon {epsilon:g}"] = Method(
            noise, good
        )
        rates = {"client.rate": RATES[1:6:2], "privacy.threshold": THRESHOLDS[-3:]}
        noise = _given_noise(all_clients)
        name = f"norm, no credit for sampling, epsilon {epsilon:g}"
        methods[name] = Method(noise, rates)
    return Comparison(base, methods, last=5)


def noises(base, epsilon: float) -> tuple[float, float]:
    """Returns z by the paper's formula, and z without credit for sampling clients.

    Args:
      base: the config, for its rounds, its clients and its cohort.
      epsilon: the epsilon of the guarantee, at delta 1e-5.
    """
    n, r = base.data.clients, base.cohort.size
    promise = {"epsilon": epsilon, "delta": 1e-5}
    theirs = das.noise_multiplier(rounds=base.rounds, n=n, r=r, **promise)
    return theirs, accounting.calibrate(accounting.Plan(base.rounds, n, n), **promise)


def _given_noise(noise_multiplier: float) -> dict[str, object]:
    return {
        "algorithm": "dp_normfedavg",
        "privacy.target_epsilon": 0.0,
        "privacy.noise_multiplier": noise_multiplier,
    }
