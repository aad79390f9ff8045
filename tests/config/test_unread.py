"""What changes nothing is said to change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from fl_sketch.algorithms import catalog
from fl_sketch.config import parse
from fl_sketch.config.arguments import (
    ARGUMENTS,
    ASKED_FOR,
    Parts,
    small_step,
    taken,
    unread,
)
from fl_sketch.core.keys import round_keys
from fl_sketch.core.mappings import flat
from fl_sketch.engine import initial_server

pytestmark = pytest.mark.fast


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
    ],
    ids=range(8),
)  # fmt: skip
def test_keys_that_an_algorithm_does_not_read_are_found(changes, found):
    config = default.get_config()
    config.update_from_flattened_dict(changes)
    assert list(unread(config, default.get_config())) == found


def test_every_key_is_one_and_goes_somewhere():
    takes = {name for method in catalog.methods().values() for name in method.takes}
    legal = flat(default.get_config())
    assert {*ARGUMENTS} <= takes
    for name, argument in ARGUMENTS.items():
        assert {*argument.keys} <= {*legal}, name
    for key, (other, _) in ASKED_FOR.items():
        assert key in legal and other in legal, key


@pytest.mark.parametrize("name", catalog.methods())
def test_an_algorithm_gets_what_it_requires_and_nothing_else_is_made(name, monkeypatch):
    config, method = default.get_config(), catalog.method(name)
    parts = Parts(config, 1000, parse.numbers_of(config))

    def fail(_):
        raise AssertionError

    for other in {*ARGUMENTS} - {*method.takes}:
        monkeypatch.setitem(ARGUMENTS, other, ARGUMENTS[other]._replace(make=fail))
    assert {*method.requires} <= {*taken(method, parts)} <= {*method.takes}


QUICK = ("safl", "ef21", "fedsketchgate", "fetchsgd", "marina", "private_sketching")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in catalog.methods()
    ],
)
def test_steps_are_read_unless_the_catalogue_says_that_they_are_not(name):
    config, method = default.get_config(), catalog.method(name)
    if name == "marina":
        config.compressor.name = "random_k"
    parts = Parts(config, 1000, parse.numbers_of(config))
    algorithm = method.make(squares, **taken(method, parts))
    same = jnp.zeros((config.client.steps, 2, 1000))

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

    parts = Parts(default.get_config(), 10, {})
    with pytest.raises(ValueError, match="got 'client_rat'. Did you mean") as raised:
        taken(catalog.Method("strange", strange), parts)
    assert "\n" not in str(raised.value)


def test_a_server_that_should_average_is_told_of_a_small_step():
    config = default.get_config()
    assert not small_step(config, default.get_config())  # adaptive
    config.algorithm = "fedavg"
    assert "server.rate=1.0" in small_step(config, default.get_config())
    config.server.rate = 0.5  # somebody's choice
    assert not small_step(config, default.get_config())
