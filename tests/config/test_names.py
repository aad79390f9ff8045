"""Methods and values have the names that papers and other libraries give them."""

import chex
import jax.numpy as jnp
import optax
import pytest

from configs import default
from fl_sketch.algorithms import catalog
from fl_sketch.config import parse
from fl_sketch.config.arguments import taken
from fl_sketch.run import from_config
from tests.refusals import refused


def server_of(config):
    method = catalog.method(config.algorithm)
    return taken(method, config, 7, parse.hyperparameters_of(config))["server"]


SERVERS = {  # of the default rates
    "fedadagrad": optax.adagrad(0.01, eps=1e-8),
    "fedadam": optax.adam(0.01, 0.9, 0.99),
    "fedamsgrad": optax.amsgrad(0.01, 0.9, 0.99),
    "fedavgm": optax.sgd(0.01, momentum=0.9),
    "fedyogi": optax.yogi(0.01, 0.9, 0.99, 1e-8),
}


@pytest.mark.parametrize("name", catalog.SERVERS)
def test_what_papers_call_fedopt_has_the_optimizer_of_that_name(name):
    config, params = default.get_config(), jnp.ones(7)
    config.algorithm = name
    ours, theirs = server_of(config), SERVERS[name]
    mine, expected = ours.init(params), theirs.init(params)
    for grads in (jnp.linspace(-1, 2, 7), jnp.linspace(3, 1, 7)):
        one, mine = ours.update(grads, mine, params)
        other, expected = theirs.update(grads, expected, params)
        chex.assert_trees_all_close(one, other)


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
        catalog.Method("none", lambda *, client_rate: client_rate),
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
