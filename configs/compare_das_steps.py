"""Das et al., equation 11: do local steps help a private run, and for which clients?

Command: python -m launch.compare --config=configs/compare_das_steps.py \
--workdir=/tmp/das_steps --data_dir=DATA
Expect: the table of results/das_steps.

The paper derives from its bound that many local steps E help where clients are alike,
and that E = 1 is best where they differ. Here logistic regression learns Fashion-MNIST
in DP-FedAvg with clipping, at epsilon 5, with the setting of
configs/das_fashion_mnist.py but for E. Clients have images of all classes, of five
label shards, or of one. C and eta_0 are tuned for each E.
"""

from configs import das_fashion_mnist
from fl_sketch.sweep.comparison import Comparison, Method

STEPS = (1, 5, 20, 50)
CLIENTS = {
    "alike": (STEPS, {"data.partition": "iid"}),
    "unlike": (STEPS, {"data.partition": "label_shards"}),
    "one class": ((1, 20), {"data.partition": "label_shards", "data.per_client": 1}),
}
PER_STEP = (0.1, 0.4, 1.6, 6.4)  # thresholds, over the local steps
RATES = (0.004, 0.016, 0.064, 0.256)


def get_comparison():
    """Returns clipping with several numbers of local steps, on each kind of clients.

    A threshold is a bound on the sum of the gradients of all local steps.
    """
    methods = {
        f"{clients}, {steps} local step{'s' * (steps > 1)}": Method(
            {**partition, "client.steps": steps},
            {
                "client.rate": RATES,
                "privacy.threshold": tuple(steps * one for one in PER_STEP),
            },
        )
        for clients, (numbers, partition) in CLIENTS.items()
        for steps in numbers
    }
    base = das_fashion_mnist.get_config()
    base.algorithm, base.eval_every = "dp_fedavg", 10
    return Comparison(base, methods, widen=2)
