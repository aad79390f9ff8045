"""A constructor refuses arguments of a wrong type in one line."""

import inspect

import jax
import optax
import pytest

from fl_sketch import algorithms, sketch
from fl_sketch.algorithms import catalog
from fl_sketch.algorithms.checked import KINDS
from fl_sketch.core.protocols import Compressor, Sketch
from fl_sketch.privacy import clipping
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local
from tests.refusals import refused

pytestmark = pytest.mark.fast
NAMES = sorted(catalog.methods())


def loss(params, batch):
    return (params * batch).sum()


RIGHT = {
    local.Loss: loss,
    local.Optimizer: optax.sgd,
    clipping.OfLimit: clipping.clip,
    Sketch: sketch.count_sketch(4, 3),
    Compressor: compressors.top_k(2),
    optax.GradientTransformation: optax.sgd(0.1),
    optax.ScalarOrSchedule: 0.1,
    jax.typing.ArrayLike: 0.1,
    float: 0.1,
    int: 1,
}


def needed(name):
    """Returns the annotations of an algorithm's arguments, and right values."""
    make = getattr(algorithms, name)
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # those of another one
        parameters = inspect.signature(algorithms.dp_fedavg).parameters.values()
        parameters = [p for p in parameters if p.name != "bound"]
    required = [p for p in parameters if p.default is p.empty]
    right = {p.name: RIGHT[p.annotation] for p in required}
    if name == "marina":
        right["compressor"] = compressors.random_k(2)
    return make, {p.name: p.annotation for p in parameters}, right


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_of_a_wrong_type_is_named(name):
    make, kinds, right = needed(name)
    make(**right)
    for argument, kind in kinds.items():
        assert kind in KINDS, argument
        wrong = [1, 2] if kind is bool else object()
        with refused(f"Expected {argument} to be", error=TypeError):
            make(**right | {argument: wrong})


def test_what_a_newcomer_passes_is_refused_with_what_is_allowed():
    safl, right = algorithms.safl, needed("safl")[2]
    wrong = [
        ("sketch", 100, "count_sketch"),
        ("server", 0.1, "optax.adam"),
        ("server", optax.adam, "optax.adam"),
        ("client_rate", "0.1", "a number"),
        ("client_rate", True, "a number"),
        ("client_optimizer", optax.sgd(0.1), "optax.sgd"),
    ]
    for argument, value, words in wrong:
        with refused(words, f"got {argument}=", error=TypeError):
            safl(**right | {argument: value})


def test_what_is_missing_is_said_by_the_call_itself():
    with refused("safl", "sketch", error=TypeError):
        algorithms.safl(loss, client_rate=0.1, server=optax.sgd(0.1))


def test_traced_numbers_pass():
    def rounds(rate):
        algorithms.fedavg(loss, client_rate=rate, server_rate=rate)
        return rate

    jax.jit(rounds)(0.1)
