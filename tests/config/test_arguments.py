"""Arguments are what pages say that keys become; other keys are said to do nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from fl_sketch.algorithms import catalog
from fl_sketch.config import parse
from fl_sketch.config.arguments import ASKED_FOR, KEYS, hints, taken, unread
from fl_sketch.core.keys import round_keys
from fl_sketch.core.mappings import flat
from fl_sketch.engine import initial_server
from fl_sketch.workdir import secrets
from tests.quick import some_fast
from tests.refusals import refused

pytestmark = pytest.mark.fast


def config_with(changes):
    config = default.get_config()
    config.update_from_flattened_dict(changes)
    return config


def arguments_of(method, **changes):
    """Returns what an algorithm gets of a config with some keys changed."""
    config = config_with({k.replace("__", "."): v for k, v in changes.items()})
    return taken(method, config, 1000, parse.hyperparameters_of(config))


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.1), (5, 0.1), (5, 0.2)])
def test_the_gain_of_variates_is_of_the_whole_way_of_a_client(steps, rate):
    keys = {"client__gain": 0.5, "client__rate": rate, "client__steps": steps}
    gain = arguments_of(catalog.method("fedgate"), **keys)["gain"]
    assert gain == pytest.approx(0.5 / (rate * steps), rel=1e-6)


@pytest.mark.parametrize(
    ("share", "rounds", "warmup"), [(0.19, 10, 2), (0.14, 10, 1), (0.0, 10, 1)]
)
def test_rounds_of_a_warm_up_are_rounded(share, rounds, warmup):
    method = catalog.method("onebit_adam")
    found = arguments_of(method, server__warmup=share, rounds=rounds)
    assert found["warmup"] == warmup


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"client.proximal": 0.1, "sketch.query": "heaprix"},
         ["client.proximal=0.1", "sketch.query=heaprix"]),
        ({"privacy.threshold": 5.0}, ["privacy.threshold=5.0"]),
        ({"privacy.threshold": 5.0, "privacy.bound": "clip"}, []),
        ({"algorithm": "fetchsgd", "client.rate": 0.5, "server.eps": 0.1},
         ["client.rate=0.5", "server.eps=0.1"]),
        ({"algorithm": "fetchsgd", "client.steps": 9}, ["client.steps=9"]),
        ({"data.alpha": 0.1, "server.floor": 0.1},
         ["data.alpha=0.1", "server.floor=0.1"]),
        ({"data.alpha": 0.1, "data.partition": "dirichlet"}, []),
        ({"client.epochs": 2, "client.steps": 9, "client.batches": "subsets"},
         ["client.batches=subsets", "client.steps=9"]),
    ],
    ids=range(9),
)  # fmt: skip
def test_keys_that_an_algorithm_does_not_read_are_found(changes, found):
    assert [*unread(config_with(changes), default.get_config())] == found


def test_every_key_is_one_and_goes_somewhere():
    takes = {name for method in catalog.methods().values() for name in method.takes}
    legal = {*flat(default.get_config())}
    assert {*KEYS} <= takes
    assert {key for keys in KEYS.values() for key in keys} <= legal
    assert {*ASKED_FOR, *(other for other, _ in ASKED_FOR.values())} <= legal


QUICK = ("safl", "ef21", "fedsketchgate", "fetchsgd", "marina", "private_sketching")


@pytest.mark.parametrize("name", some_fast(catalog.methods(), QUICK))
def test_steps_are_read_unless_the_catalogue_says_that_they_are_not(name):
    method, count = catalog.method(name), default.get_config().client.steps
    changes = {"compressor__name": "random_k"} if name == "marina" else {}
    arguments = arguments_of(method, **changes)
    assert {*method.requires} <= {*arguments} <= {*method.takes}
    algorithm = method.make(squares, **arguments)
    same = jnp.zeros((count, 2, 1000))

    @jax.jit
    def update(batches):
        server, client = initial_server(algorithm, jnp.ones(1000))
        keys = round_keys(jax.random.key(0), 0, 0)
        return algorithm.local.run(server, client.local, batches, keys).update

    sent = map(update, (same, same.at[1:].set(9.0)))
    pairs = zip(*map(jax.tree.leaves, sent), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs) == method.one_batch


def squares(params, batch):
    return jnp.mean((params - batch) ** 2)


def test_an_argument_that_no_config_has_is_refused_in_one_line():
    def strange(loss, *, client_rat):
        raise AssertionError((loss, client_rat))

    with refused("'client_rat'", "'client_rate'"):
        arguments_of(catalog.Method("strange", strange))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),  # adaptive
        ({"algorithm": "fedavg"}, ["server.rate=1.0"]),
        ({"algorithm": "fedavg", "server.rate": 0.5}, []),  # somebody's choice
        ({"algorithm": "fedcams"}, []),  # adaptive too
        ({"algorithm": "fetchsgd"}, ["client.batch=20"]),
    ],
    ids=str,
)
def test_a_server_that_hardly_moves_and_clients_without_steps_are_named(changes, said):
    lines = [*hints(config_with(changes), default.get_config())]
    assert len(lines) == len(said)
    assert all(word in line for word, line in zip(said, lines, strict=True))


def test_a_key_that_is_added_to_configs_leaves_simulated_secrets_as_they_were():
    """A new key of configs/default.py belongs in `secrets.ADDED` with its default."""
    found = secrets.simulated(flat(default.get_config()))
    assert found.check == "6edb37d8213177ad795ac1330cddb8bc"  # in release 0.3
