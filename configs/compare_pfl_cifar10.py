"""The CIFAR-10 benchmark of pfl-research: FedAvg, FedAdam, and SAFL at three sizes.

Command: python -m launch.compare --config=configs/compare_pfl_cifar10.py \
--workdir=/tmp/pfl_cifar10 --data_dir=DATA
Expect: the tables of results/pfl_cifar10, in about 40 minutes a run on two cores.

The setting is that of configs/pfl_cifar10.py. FedAvg has the rates of the benchmark.
Adam's rate at the server is tuned in 300 of 1500 rounds, until the best rate is not at
an end. Each seed is a separate run. The argument after the colon is the number of
seeds, with "unlike," in front of it for clients that differ
(configs/compare_pfl_cifar10.py:unlike,3).
"""

from configs import pfl_cifar10
from fl_sketch.sweep.comparison import Comparison, Method

NAMES = {
    "fedavg": "FedAvg",
    "fedadam": "FedAdam",
    "10x": "SAFL, 1/10",
    "100x": "SAFL, 1/100",
    "1000x": "SAFL, 1/1000",
}
RATES = (0.001, 0.003, 0.01)
UNLIKE = ("fedavg", "100x")


def get_comparison(which: str = "3"):
    """Returns the methods, FedAvg first.

    Args:
      which: the number of seeds, after "unlike," for clients that differ.

    Raises:
      ValueError: for anything else, in one line.
    """
    unlike, _, seeds = which.rpartition(",")
    if not seeds.isdigit() or int(seeds) < 1 or unlike not in ("", "unlike"):
        msg = f"Expected [unlike,]SEEDS after the colon, unlike,3 say, got {which}."
        raise ValueError(msg)
    methods = {}
    for name in UNLIKE if unlike else NAMES:
        rates = {} if name == "fedavg" else {"server.rate": RATES}
        methods[NAMES[name]] = Method(pfl_cifar10.METHODS[name], rates)
    base = pfl_cifar10.get_config(f"{unlike},100x" if unlike else "100x")
    return Comparison(
        base,
        methods,
        seeds=range(int(seeds)),
        tuning_rounds=300,
        apart=True,
        widen=4,
    )
