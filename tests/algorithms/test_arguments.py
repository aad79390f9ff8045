"""What is no sketch operator is refused where an algorithm is made."""

import optax
import pytest

from fl_sketch import transforms
from fl_sketch.algorithms import catalog
from fl_sketch.sketch import compressors
from tests.refusals import refused

pytestmark = pytest.mark.fast

SKETCHING = [name for name, one in catalog.methods().items() if "sketch" in one.takes]
OTHERS = dict.fromkeys(("client_rate", "server_rate", "threshold", "gain"), 0.1) | {
    "server": optax.adam(0.1),
    "steps": 2,
    "noise_multiplier": 1.0,
}


@pytest.mark.parametrize("name", SKETCHING)
def test_a_number_in_place_of_a_sketch(name):
    method = catalog.method(name)
    given = {one: OTHERS[one] for one in method.requires if one != "sketch"}
    with refused("sketch.count_sketch(100)", "got sketch=100", error=TypeError):
        method.make(lambda params, batch: 0.0, sketch=100, **given)


def test_a_compressor_in_place_of_a_sketch():
    for part in (transforms.sketch, transforms.desketch):
        with refused("sketch operator", "Compressor", error=TypeError):
            part(compressors.top_k(3))
