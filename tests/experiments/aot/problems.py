"""Small rounds compiled for absent TPUs, each once."""

import functools

from configs import default
from fl_sketch.algorithms import catalog
from fl_sketch.experiments.aot import placing, topology
from fl_sketch.run import prepare

SMALL = {
    "model.name": "logistic",
    "data.clients": 40,
    "cohort.size": 8,
    "client.steps": 2,
    "client.batch": 4,
    "sketch.compression": 10.0,
}
D = 650  # parameters of a logistic regression on digits
SLICES = {"v5e:1x1": 1, "v5e:2x2": 4, "v5e:4x4": 16}
# Keys without which a method is not what it is for.
PRIVATE = {
    "privacy.bound": "clip",
    "privacy.noise_multiplier": 1.0,
    "privacy.relation": "replace_one",
}
OF_METHODS = {
    "dp_fedavg": PRIVATE,
    "dp_normfedavg": PRIVATE | {"privacy.bound": "normalise"},
    "private_sketching": {
        "privacy.unit": "example",
        "client.batches": "subsets",
        "cohort.sampling": "everyone",
        "privacy.noise_multiplier": 1.0,
        "privacy.relation": "replace_one",
    },
    "marina": {"compressor.name": "random_k"},
}
# Their parts are those of the default round, or of another method.
ALIKE = {
    *("safl", "iterative_sketching", "fedavg", "fedopt", "fedgate"),
    *("fedsketch", "ef21", "ef_sign_sgd", "qsgd"),
}
assert {*catalog.methods()} >= ALIKE
METHODS = tuple(name for name in catalog.methods() if name not in ALIKE)
OPERATORS = tuple(name for name in catalog.OPERATORS if name != "count_sketch")


@functools.cache
def _setup(slice_of, settings):
    config = default.get_config()
    config.update_from_flattened_dict(SMALL | dict(settings))
    mesh = topology.of_tpus(slice_of, config.compute.model_devices)
    return prepare(config, mesh=mesh)


def setup_of(settings, slice_of="v5e:2x2"):
    """Returns the setup of some settings on a slice."""
    return _setup(slice_of, tuple(settings.items()))


@functools.cache
def _placed(slice_of, settings):
    return placing.place(placing.lower(_setup(slice_of, settings)))


def placed(slice_of, settings=None):
    """Returns the round of some settings, compiled for a slice."""
    return _placed(slice_of, tuple((settings or {}).items()))
