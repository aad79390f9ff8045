"""Arguments are what the pages say that keys become."""

import pytest

from configs import default
from fl_sketch.config import arguments, parse

pytestmark = pytest.mark.fast


def made(name, **changes):
    """Returns an argument of a config with some keys changed."""
    config = default.get_config()
    config.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in changes.items()}
    )
    parts = arguments.Parts(config, 650, parse.numbers_of(config))
    return arguments.ARGUMENTS[name].make(parts)


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.1), (5, 0.1), (5, 0.2)])
def test_the_gain_of_variates_is_of_the_whole_way_of_a_client(steps, rate):
    gain = made("gain", client__gain=0.5, client__rate=rate, client__steps=steps)
    assert gain == pytest.approx(0.5 / (rate * steps), rel=1e-6)


@pytest.mark.parametrize(
    ("share", "rounds", "warmup"), [(0.19, 10, 2), (0.14, 10, 1), (0.0, 10, 1)]
)
def test_rounds_of_a_warm_up_are_rounded(share, rounds, warmup):
    assert made("warmup", server__warmup=share, rounds=rounds) == warmup
