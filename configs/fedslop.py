"""FedSLoP's table on MNIST, with compressed messages beside its rows.

Command: python -m launch.train --config=configs/fedslop.py:safl,50x \
--workdir=/tmp/fedslop --data_dir=DATA
Command: python -m launch.compare --config=configs/fedslop.py \
--workdir=/tmp/compare_fedslop --data_dir=DATA
Expect: test accuracy after 100 rounds, as in results/fedslop; FedAvg-M has 95.51 +-
0.15 in the paper, and 95.60 +- 0.65 there.

50 clients share MNIST by Dirichlet(0.1), and 10 of them in each round pass once over
their images in batches of 32 at rate 0.018. The network is 784-128-10, of 101,770
parameters. FedAvg-M has momentum at the server, 0.8 in the authors' command, and counts
all clients alike. The argument of the first command is a method, and a size:

  fedavgm                  the paper's baseline
  safl,7x                  SAFL, messages 7 times smaller; also 50x, 100x
  top_k,7x                 the largest numbers, with error feedback and momentum

In the paper, FedSLoP at 1/7 has 95.11 +- 0.28 and FedLoRA-M 92.47 +- 0.63. Its 1/7 is
what a client keeps in memory; its messages are whole updates. Rates of the server are
tuned with another seed in all rounds, apart from FedAvg-M's.

Reference: He, Huang and Geng (2026), FedSLoP: Memory-Efficient Federated Learning with
Low-Rank Gradient Projection.
"""

import optax

from configs import default
from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm, Compressor
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.transforms import local

METHODS = {
    "fedavgm": {"algorithm": "fedavgm", "server.rate": 1.0},
    "safl": {"algorithm": "safl", "server.rate": 0.003},
    "top_k": {
        "algorithm": "configs/fedslop.py:top_k",
        "server.optimizer": "momentum",
        "server.rate": 1.0,
    },
}
NAMES = {"fedavgm": "FedAvg-M", "safl": "SAFL", "top_k": "top-k"}
RATES = {"safl": (0.001, 0.003, 0.01), "top_k": (0.3, 1.0, 3.0)}
SIZES = ("7x", "50x", "100x")


def top_k(
    loss: local.Loss,
    *,
    compressor: Compressor,
    client_rate: float,
    server: optax.GradientTransformation,
) -> Algorithm:
    """Returns local SGD whose clients send the largest numbers and keep the others."""
    return Algorithm(
        local=local.sgd_steps(loss, optax.sgd(client_rate)),
        uplink=channels.error_feedback(channels.compressed(compressor)),
        server=server,
    )


def get_config(which: str = "fedavgm"):
    """Returns the config of a method.

    Args:
      which: fedavgm, or another of `METHODS` and one of `SIZES`.

    Raises:
      ValueError: for any other text, in one line.
    """
    method, _, size = which.partition(",")
    sizes = ("",) if method == "fedavgm" else SIZES
    if method not in METHODS or size not in sizes:
        allowed = f"fedavgm or safl|top_k,{'|'.join(SIZES)}"
        msg = f"Expected configs/fedslop.py:{allowed}, got {which}."
        raise ValueError(msg)
    config = default.get_config()
    config.rounds = 100
    config.eval_every = config.checkpoint_every = 10
    config.data.name = "mnist"
    config.data.clients = 50
    config.data.partition = "dirichlet"
    config.data.alpha = 0.1
    config.data.standardise = "0.1307/0.3081"
    config.model.name = "mlp"
    config.model.size = "tiny"
    config.cohort.size = 10
    config.client.rate = 0.018
    config.client.epochs = 1
    config.client.batch = 32
    config.compute.devices = 1  # with two, one waits for the other's larger clients
    config.server.b1 = 0.9 if method == "safl" else 0.8
    config.update_from_flattened_dict(METHODS[method])
    if size:
        name = "sketch" if method == "safl" else "compressor"
        config[name].compression = float(size.removesuffix("x"))
    return config


def get_comparison():
    """Returns all methods, FedAvg-M first, whose rates are the paper's."""
    methods = {"FedAvg-M": Method({**METHODS["fedavgm"], "server.b1": 0.8})}
    for method, rates in RATES.items():
        for size in SIZES:
            own = get_config(f"{method},{size}")
            keys = METHODS[method] | {
                "server.b1": own.server.b1,
                "sketch.compression": own.sketch.compression,
                "compressor.compression": own.compressor.compression,
            }
            name = f"{NAMES[method]}, 1/{size.removesuffix('x')}"
            methods[name] = Method(keys, {"server.rate": rates})
    return Comparison(get_config(), methods, widen=3)
