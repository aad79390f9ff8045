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


@pytest.mark.parametrize(
    "name", ["", "v9:2x2", "v5e", "v5e:0x2", "v5e:2x2x2", "v6e:1x1x1", "v5p:2x2", "2x2"]
)
def test_what_no_slice_is_called_is_refused(name):
    with pytest.raises(
        ValueError, match=r"Expected topology=v5e\|v6e:NxM, .* v5p:NxMx"
    ):
        topology.of_tpus(name)


@pytest.mark.parametrize("name", ["v5e:32x32", "v6e:2x256", "v5p:100x100x100"])
def test_more_chips_than_a_slice_has_are_refused(name):
    with pytest.raises(ValueError, match=f"Expected at most .*, got topology={name}"):
        topology.of_tpus(name)


def test_a_shape_that_there_is_not_is_told_as_the_compiler_says_it():
    with pytest.raises(ValueError, match="got topology=v5e:3x3: Topology layout .*not"):
        topology.of_tpus("v5e:3x3")


def test_models_use_all_chips():
    with pytest.raises(ValueError, match="a divisor of 4, .*got model_devices=3"):
        topology.of_tpus("v5e:2x2", 3)
    with pytest.raises(ValueError, match="a divisor of 8, .*got model_devices=3"):
        topology.of_gpus(8, 3)
    with pytest.raises(ValueError, match="Expected devices to be an integer >= 1"):
        topology.of_gpus(0)


def test_without_its_library_the_line_says_what_to_install(monkeypatch):
    from jax.experimental import topologies

    def missing(**named):
        assert named
        raise RuntimeError("JAX TPU support not installed; cannot generate topology.")

    monkeypatch.setattr(topologies, "get_topology_desc", missing)
    with pytest.raises(ValueError, match=r"pip install 'fl_sketch\[tpu\]'"):
        topology.of_tpus("v5e:2x2")


def test_flags_for_this_machine_are_kept_from_the_other_compiler(monkeypatch):
    import os

    monkeypatch.setenv("XLA_FLAGS", "--xla_some")
    with topology.own_flags():
        assert "XLA_FLAGS" not in os.environ
    assert os.environ["XLA_FLAGS"] == "--xla_some"
    assert "jax" in sys.modules and jax.default_backend() == "cpu"
