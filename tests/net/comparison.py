"""A small comparison, for the net."""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method
from tests.net.cases import CHANGES, CLIP


def get_comparison():
    base = default.get_config()
    base.update_from_flattened_dict(CHANGES)
    methods = {
        "SAFL": Method({}, {"server.rate": (0.003, 0.01, 0.03)}),
        "FedAvg": Method(
            {"algorithm": "fedavg", "server.rate": 1.0}, {"client.rate": (0.1, 0.3)}
        ),
        "private": Method(CLIP),
    }
    return Comparison(base, methods, seeds=(0, 1), tuning_rounds=3, widen=1)
