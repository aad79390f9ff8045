"""SAFL's own size: a ResNet of 42.5 million parameters, with sketches and without.

Command: python -m launch.compare --config=configs/compare_resnet101.py:150 \
--workdir=/tmp/resnet101 --data_dir=DATA
Expect: on an H200 six rounds a second for one run alone, after minutes of compiling.
results/accelerators has the rows of the first rate, and two of the last.

The argument after the colon is the number of rounds. Five clients have batches of 128,
as in Chen et al., and take two local steps or one gradient of 256, in bfloat16. SAFL's
messages have 4000 to 4 million numbers. The other methods are FedAdam, 1-bit Adam, and
CD-Adam at 1/100. Every server rate of `RATES` is a separate row, with one seed.
"""

from configs import accelerators
from configs.compare_cifar10 import WARMUP
from fl_sketch.sweep.comparison import Comparison, Method

RATES = (0.001, 0.003, 0.0003)
METHODS = {
    "FedAdam": {"algorithm": "fedopt"},
    "SAFL, b=4e5": {"sketch.size": 400_000},
    "SAFL, b=4e4": {"sketch.size": 40_000},
    "SAFL, b=4e6": {"sketch.size": 4_000_000},
    "SAFL, b=4e3": {"sketch.size": 4_000},
}
OF_GRADIENTS = {
    "CD-Adam, 1/100": {"algorithm": "cd_adam", "compressor.compression": 100.0},
    "1-bit Adam": {"algorithm": "onebit_adam", "server.warmup": WARMUP},
}


def get_comparison(which: str = "150"):
    """Returns each method at each rate, unsketched FedAdam first.

    Args:
      which: the number of rounds.

    Raises:
      ValueError: in one line, for anything but a whole number from 10 on.
    """
    if not which.isdigit() or int(which) < 10:
        msg = f"Expected a number of rounds from 10 on, 150 say, got {which}."
        raise ValueError(msg)
    base = accelerators.get_config("resnet101")
    base.rounds = int(which)
    base.eval_every = base.rounds // 6
    base.checkpoint_every = base.rounds
    base.compute.chunk = 1
    # For methods without local steps: the same examples per round.
    batch = base.client.steps * base.client.batch
    gradient = {"client.steps": 1, "client.batch": batch}
    whole = {name: keys | gradient for name, keys in OF_GRADIENTS.items()}
    methods = {
        f"{name}, rate {rate}": Method({**keys, "server.rate": rate})
        for rate in RATES
        for name, keys in (METHODS | whole).items()
    }
    return Comparison(base, methods, seeds=(0,), apart=True)
