"""Slices by their names; what there is not is said in one line."""

import sys

import jax
import pytest

from fl_sketch import engine
from fl_sketch.experiments.aot import topology

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("v5e:1x1", {"clients": 1}, 15.75),
        ("v5e:4x4", {"clients": 16}, 15.75),
        ("v5p:2x2x1", {"clients": 4}, 95.73),
        ("v6e:2x4", {"clients": 8}, 31.24),
    ],
)
def test_a_slice_is_a_mesh_of_chips_with_their_memory(name, shape, kind):
    mesh = topology.of_tpus(name)
    assert dict(mesh.shape) == shape
    assert topology.memory(mesh) == kind * 2**30
    assert not engine.compiler_options(mesh)


def test_a_model_may_lie_on_several_chips():
    assert dict(topology.of_tpus("v5e:4x4", 8).shape) == {"clients": 2, "model": 8}
    assert dict(topology.of_gpus(8, 2).shape) == {"clients": 4, "model": 2}
    assert dict(topology.of_gpus(3).shape) == {"clients": 3}


WRONG = ("", "v9:2x2", "v5e", "v5e:0x2", "v5e:2x2x2", "v6e:1x1x1", "v5p:2x2", "2x2")
TOO_MANY = ("v5e:32x32", "v6e:2x256", "v5p:100x100x100")
OF_TPUS, OF_GPUS = topology.of_tpus, topology.of_gpus


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        *((OF_TPUS, (name,), r"v5e\|v6e:NxM, .* v5p:NxMx") for name in WRONG),
        *((OF_TPUS, (name,), f"at most .*topology={name}") for name in TOO_MANY),
        (OF_TPUS, ("v5e:3x3",), "topology=v5e:3x3: .*not"),  # the compiler says so
        (OF_TPUS, ("v5e:2x2", 3), "4 .devices.*got model_devices=3"),
        (OF_GPUS, (8, 3), "8 .devices.*got model_devices=3"),
        (OF_GPUS, (0,), "devices.* >= 1"),
    ],
)
def test_what_there_is_not_is_refused(make, arguments, words):
    with pytest.raises(ValueError, match=words):
        make(*arguments)


def test_without_its_library_the_line_says_what_to_install(monkeypatch):
    from jax.experimental import topologies

    def missing(**named):
        assert named
        raise RuntimeError("JAX TPU support not installed; cannot generate topology.")

    monkeypatch.setattr(topologies, "get_topology_desc", missing)
    with pytest.raises(ValueError, match=r"pip install libtpu"):
        topology.of_tpus("v5e:2x2")


def test_flags_for_this_machine_are_kept_from_the_other_compiler(monkeypatch):
    import os

    monkeypatch.setenv("XLA_FLAGS", "--xla_some")
    with topology.own_flags():
        assert "XLA_FLAGS" not in os.environ
    assert os.environ["XLA_FLAGS"] == "--xla_some"
    assert "jax" in sys.modules and jax.default_backend() == "cpu"
