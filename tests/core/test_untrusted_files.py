"""Archives of weights that would fill the memory are refused before they are read."""

import numpy as np
import pytest

from fl_sketch.models import params_io
from fl_sketch.workdir import checkpoint

READERS = {
    "weights": params_io.load,
    "an array": lambda path: checkpoint.array_of(path, "w"),
    "frozen arrays": lambda path: checkpoint.arrays_below(path, ""),
    "a checkpoint": lambda path: checkpoint.read(path.open("rb"), {"w": np.zeros(3)}),
}


@pytest.fixture(scope="module", name="bomb")
def _bomb(tmp_path_factory):
    path = tmp_path_factory.mktemp("bombs") / "bomb.npz"
    np.savez_compressed(path, w=np.zeros(2**25, np.float32))
    return path


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.parametrize("reader", READERS)
def test_what_unpacks_to_far_more_than_it_is_is_refused(bomb, reader, monkeypatch):
    def unpacked(*_, **__):
        raise AssertionError

    monkeypatch.setattr(np, "load", unpacked)
    with pytest.raises(ValueError, match=r"bomb\.npz to unpack to at most"):
        READERS[reader](bomb)


def test_weights_that_were_compressed_are_read(tmp_path):
    path, weights = tmp_path / "weights.npz", np.arange(1000, dtype=np.float32)
    np.savez_compressed(path, w=weights)
    assert np.array_equal(params_io.load(path)["w"], weights)
