"""Methods and values have the names that papers and other libraries give them."""

import chex
import jax.numpy as jnp
import pytest

from configs import default
from fl_sketch.algorithms import catalog
from fl_sketch.config import parse
from fl_sketch.config.arguments import taken
from fl_sketch.run import from_config
from tests.refusals import refused


def server_of(config):
    method = catalog.method(config.algorithm)
    return taken(method, config, 7, parse.numbers_of(config))["server"]


@pytest.mark.parametrize(("name", "optimizer"), catalog.SERVERS.items())
def test_what_papers_call_fedopt_is_fedopt_with_that_optimizer(name, optimizer):
    config, params = default.get_config(), jnp.ones(7)
    config.algorithm = name
    named = server_of(config)
    config.algorithm, config.server.optimizer = "fedopt", optimizer
    general = server_of(config)
    grads = jnp.linspace(-1, 2, 7)
    for server in (named, general):
        update, _ = server.update(grads, server.init(params), params)
        assert not jnp.array_equal(update, grads)
    chex.assert_trees_all_equal(
        *(s.update(grads, s.init(params), params)[0] for s in (named, general))
    )


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("algorithm", "FedAdam", "fedadam"),
        ("client.optimizer", "adamW", "adamw"),
        ("sketch.operator", "CountSketch", "count_sketch"),
    ],
)
def test_names_of_others_are_understood(key, value, meant):
    config = default.get_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(ValueError, match=f"Did you mean '{meant}'"):
        from_config(config)


@pytest.mark.parametrize(
    "own",
    [
        catalog.Method("safl", lambda loss: loss),  # whose name is taken
        lambda loss: loss,
        catalog.Method("three", 3),
        catalog.Method("many", lambda loss, *rest: rest),
        catalog.Method("first", lambda loss, rate, /: rate),
        catalog.Method("quiet", lambda loss, *, client_rate: None, unit="example"),
    ],
    ids=range(6),
)
def test_what_no_config_could_call_is_not_registered(own):
    before = {**catalog.methods()}
    with refused(error=(ValueError, TypeError)):
        catalog.register(own)
    assert catalog.methods() == before
