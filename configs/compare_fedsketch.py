"""FedSKETCH's Figures 1 and 2: MNIST, LeNet-5, 50 devices, half of them in a round.

Command: python -m launch.compare --config=configs/compare_fedsketch.py \
--workdir=/tmp/fedsketch --data_dir=DATA
Command: python -m launch.compare \
--config=configs/compare_fedsketch.py:classes,5,20x40 \
--workdir=/tmp/fedsketch_part --data_dir=DATA
Expect: tables like those of results/fedsketch, some of whose searches were narrower. At
50x100, tau=5, iid FS-HEAPRIX has 98.5, FS-PRIVIX 98.5, FedAvg 98.7.

The argument after the colon selects settings: iid or classes (a device has two of the
ten digits), tau (the local steps), and the sketch's rows x columns. These may differ
from the paper's, as in `:classes,5,1x800`. The paper states neither its rates nor its
batches and rounds. Rates are searched on a log grid in half of the rounds, and in all
rounds for SketchedSGD and FedGATE, whose memories diverge late, until the best rate is
not at an end. SketchedSGD takes the coordinates with the largest estimates, as in its
authors' code. `as printed`, it fills up the few heavy coordinates with random ones.
`FS-HEAPRIX, top` has the largest estimates instead of the printed coordinates.
"""

import itertools
import re

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

PARTITIONS, TAUS, SIZES = ("iid", "classes"), ("1", "2", "5"), ("20x40", "50x100")
GLOBAL = {"server.rate": (0.03, 0.1, 0.3, 1.0)}
BOTH = {"client.rate": (0.1, 0.3, 1.0, 3.0), **GLOBAL}
PLAIN = {"client.rate": (0.1, 0.3, 1.0), "server.rate": (0.3, 1.0, 3.0)}
# If a client's loss is more curved than 2/eta, its control variate grows.
TRACKED = {"client.rate": (0.01, 0.03, 0.1, 0.3), "server.rate": (1.0, 3.0)}
# It also grows if the noise of an estimate, times the gain, exceeds its signal.
# The key is a factor of 1/(eta tau), so the printed gain is eta.
GAINS = (0.001, 0.003, 0.01, 0.03)


def get_comparison(which: str = ""):
    """Returns all settings of the figures, or those with all of the given parts.

    Args:
      which: parts with commas between them: iid or classes, tau, rows x columns. Empty:
        all.

    Raises:
      ValueError: in one line, for a part of another kind.
    """
    wanted = which.split(",") if which else []
    sizes = [part for part in wanted if re.fullmatch("[1-9][0-9]*x[1-9][0-9]*", part)]
    for part in wanted:
        if part not in (*PARTITIONS, *TAUS, *sizes[:1]):
            msg = f"Expected iid or classes, 1, 2 or 5, and ROWSxCOLS, got {part!r}."
            raise ValueError(msg)
    methods = {}
    for partition, tau, size in itertools.product(PARTITIONS, TAUS, sizes or SIZES):
        if {partition, tau, size} >= set(wanted):
            methods |= cell(partition, tau, size)
    return Comparison(base(), methods, tuning_rounds=100, widen=3)


def base():
    """Returns the config that all methods have in common."""
    config = default.get_config()
    config.rounds = 200
    config.eval_every = 20
    config.data.name = "mnist"
    config.data.clients = 50
    config.data.per_client = 2
    config.model.name = "lenet"
    config.cohort.size = 25
    config.client.batch = 20
    config.server.optimizer = "sgd"
    config.server.rate = 1.0
    return config


def cell(partition: str, tau: str, size: str):
    """Returns the methods of one setting; those without a sketch are for both sizes.

    Args:
      partition: one of `PARTITIONS`.
      tau: the number of local steps, one of `TAUS`.
      size: the rows and columns of the sketch, as in "20x40".
    """
    keys = {"data.partition": partition, "client.steps": int(tau)}
    rows, cols = (int(number) for number in size.split("x"))
    sketch = keys | {"sketch.rows": rows, "sketch.size": rows * cols}
    heaprix = sketch | {"sketch.query": "heaprix"}
    plain, compressed = f"{partition} tau={tau}", f"{partition} tau={tau} {size}"
    methods = {
        f"{plain} FedAvg": Method(keys | {"algorithm": "fedavg"}, PLAIN),
        f"{compressed} FS-PRIVIX": Method(sketch | {"algorithm": "fedsketch"}, BOTH),
        f"{compressed} FS-HEAPRIX": Method(heaprix | {"algorithm": "fedsketch"}, BOTH),
        f"{compressed} FS-HEAPRIX, top": Method(
            heaprix | {"algorithm": "fedsketch", "sketch.heavy_fill": "top"}, BOTH
        ),
    }
    if tau == "1":
        for name, fill in {"": "top", ", as printed": "random"}.items():
            own = sketch | {"algorithm": "sketched_sgd", "sketch.heavy_fill": fill}
            name = f"{compressed} SketchedSGD{name}"
            methods[name] = Method(own, GLOBAL, whole=True)
    if partition == "classes":
        gate = {"algorithm": "fedsketchgate"}
        grid = {
            "client.rate": (0.03, 0.1),
            "server.rate": (1.0, 3.0),
            "client.gain": GAINS,
        }
        methods |= {
            f"{plain} FedGATE": Method(
                keys | {"algorithm": "fedgate"}, TRACKED, whole=True
            ),
            f"{compressed} GATE-PRIVIX": Method(sketch | gate, grid),
            f"{compressed} GATE-HEAPRIX": Method(heaprix | gate, grid),
        }
    return methods
