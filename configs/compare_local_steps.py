"""SAFL, SADL and FedCAMS on CIFAR-10 by the number of local steps, at equal passes.

Command: python -m launch.compare --config=configs/compare_local_steps.py:8 \
--workdir=/tmp/compare_local_steps --data_dir=DATA
Expect: a table of test accuracy; the argument is K: 2, 8 or 32.

A run has 800 / K rounds of K local steps, so that all see each image as often: the
ResNet of 75,290 parameters, five clients and batches of 32 of configs/safl_claims.py.
All servers are AMSGrad as SADL's Algorithm 2 prints it, without a correction of biases;
FedCAMS has its own floor. Messages have a thousandth of the model's numbers, or bits.
SADL's eps is tuned too: at 1e-8 its first steps, ratios of independent numbers, are as
long as they happen to be.
"""

from configs import safl_claims
from fl_sketch.sweep.comparison import Comparison, Method

STEPS = 800
RATES = {"server.rate": (0.003, 0.01, 0.03)}
EPS = {"server.eps": (1e-5, 1e-3)}
SRHT = {"sketch.operator": "srht"}
METHODS = {
    "FedAMSGrad": Method({"algorithm": "fedopt"}, RATES),
    "SAFL, count sketch": Method({}, RATES),
    "SAFL, SRHT": Method(SRHT, RATES),
    "SADL, count sketch": Method({"algorithm": "sadl"}, RATES | EPS),
    "SADL, SRHT": Method({"algorithm": "sadl", **SRHT}, RATES | EPS),
    "FedCAMS, top-k": Method({"algorithm": "fedcams"}, RATES),
}


def get_comparison(which: str = "2"):
    """Returns the methods, without a sketch first.

    Args:
      which: the number of local steps, a divisor of 800.

    Raises:
      ValueError: for any other text, in one line.
    """
    if not which.isdigit() or int(which) < 1 or STEPS % int(which):
        msg = f"Expected a divisor of {STEPS} after the colon, 8 say, got {which}."
        raise ValueError(msg)
    base = safl_claims.get_config("cifar10,1000x")
    base.client.steps = int(which)
    base.rounds = STEPS // int(which)
    base.eval_every = base.checkpoint_every = max(1, base.rounds // 8)
    base.server.optimizer = "paper_amsgrad"
    base.compressor.compression = 1000.0
    return Comparison(base, METHODS, widen=4)
