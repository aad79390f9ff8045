"""What changes nothing is said to change nothing."""

import inspect

import pytest

from configs import default
from fl_sketch.algorithms import catalog
from fl_sketch.experiment import choices
from fl_sketch.experiment.unread import ASKED_FOR, CARRIED, unread


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"client.clip": 1.0, "sketch.rows": 5, "client.rate": 0.3}, []),
        ({"client.proximal": 0.1, "sketch.query": "heaprix"},
         ["client.proximal=0.1", "sketch.query=heaprix"]),
        ({"privacy.threshold": 5.0}, ["privacy.threshold=5.0"]),
        ({"privacy.threshold": 5.0, "privacy.bound": "clip"}, []),
        ({"algorithm": "dp_fedavg", "sketch.compression": 50.0},
         ["sketch.compression=50.0"]),
        ({"algorithm": "dp_fedavg", "privacy.threshold": 5.0}, []),
        ({"algorithm": "fetchsgd", "client.rate": 0.5, "server.eps": 0.1},
         ["client.rate=0.5", "server.eps=0.1"]),
        ({"data.alpha": 0.1, "server.floor": 0.1},
         ["data.alpha=0.1", "server.floor=0.1"]),
        ({"data.alpha": 0.1, "data.partition": "dirichlet"}, []),
    ],
    ids=range(10),
)  # fmt: skip
def test_keys_that_an_algorithm_does_not_read_are_found(changes, found):
    config = default.get_config()
    config.update_from_flattened_dict(changes)
    assert list(unread(config, default.get_config())) == found


def test_every_key_is_one_and_goes_somewhere():
    taken = {
        name
        for make in catalog.ALGORITHMS.values()
        for name in inspect.signature(make).parameters
    }
    legal = choices.flat(default.get_config())
    for key, names in CARRIED.items():
        assert key in legal and {*names} <= taken, key
    for key, (other, _) in ASKED_FOR.items():
        assert key in legal and other in legal, key
