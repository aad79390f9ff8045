"""A client's model on several devices: the same rounds, with its arrays cut."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch import engine
from fl_sketch.algorithms.catalog import methods
from fl_sketch.config import parse
from fl_sketch.core import trees
from fl_sketch.run import prepare, run, task_of
from fl_sketch.run.task import of_setup
from fl_sketch.sweep.dry_run import outline
from fl_sketch.sweep.grid import programs, read_axes
from tests.run.configs import config_with, quiet, refused

CUT = {
    "model__name": "mlp",
    "compute__model_devices": 4,
    "compute__devices": 8,
    "data__clients": 8,
    "cohort__size": 4,
    "client__steps": 2,
    "rounds": 4,
    "eval_every": 2,
    "checkpoint_every": 2,
}


OWN = {  # keys that a method needs
    "marina": (("compressor__name", "random_k"),),
    "private_sketching": (
        ("privacy__unit", "example"), ("client__batches", "subsets"),
        ("client__batch", 4), ("cohort__sampling", "everyone"),
    ),
}  # fmt: skip


@functools.cache
def after_two_rounds(algorithm, devices, own=()):
    """Returns the state of a run of models in four parts, on so many devices."""
    setup = prepare(
        config_with(**CUT | dict(own), algorithm=algorithm),
        mesh=engine.mesh_over(jax.devices()[:devices], min(4, devices)),
    )
    task = of_setup(setup)
    roots = task.roots(None)
    play = setup.play(parse.numbers_of(setup.config))
    state, _ = jax.jit(play.rounds)(task.start(roots), roots, setup.data(0), 2)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("devices", [4, 8])  # one row, and two
@pytest.mark.parametrize("algorithm", ["safl", "scaffold"])
def test_rounds_on_rows_of_four_are_those_of_one_device(algorithm, devices):
    """Up to rounding: sums within a layer are added up in another order."""
    one, several = (after_two_rounds(algorithm, of) for of in (1, devices))
    close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-5)
    close(jax.device_get(one), jax.device_get(several))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [n for n in methods() if n != "sketched_sgd"])
def test_every_method_but_of_vectors_plays_on_one_row_of_devices(algorithm):
    state = after_two_rounds(algorithm, 4, OWN.get(algorithm, ()))
    assert state.server.round == 2
    chex.assert_tree_all_finite(state.server.params)


def test_what_is_shaped_like_the_model_is_cut_and_all_else_is_everywhere():
    task = task_of(config_with(**CUT, algorithm="scaffold"))
    begun = task.start(task.roots(None))
    kernel = begun.server.params["dense1"]["kernel"]
    assert kernel.sharding.spec == P(None, engine.MODEL)
    assert dict(kernel.sharding.mesh.shape) == {"clients": 2, "model": 4}
    shapes = {leaf.shape for leaf in jax.tree.leaves(begun.server.params)}
    leaves = jax.tree.leaves(begun)
    cut = [leaf for leaf in leaves if engine.MODEL in leaf.sharding.spec]
    assert {leaf.shape for leaf in cut} > {kernel.shape, (8, *kernel.shape)}
    assert all(leaf.shape in shapes or leaf.shape[1:] in shapes for leaf in cut)
    assert begun.server.round.sharding.spec == P()


@pytest.mark.slow
def test_a_run_goes_on_as_if_nothing_had_been(tmp_path):
    short = CUT | {"download": "model"}
    whole = run(config_with(**short), tmp_path / "whole", say=quiet)
    run(config_with(**short | {"rounds": 2}), tmp_path / "parts", say=quiet)
    parts = run(config_with(**short), tmp_path / "parts", say=quiet)
    for name in ("test_loss", "train_loss", "bytes_up_total"):
        assert whole[name] == parts[name]


def test_where_clients_alone_are_shared_out_it_is_refused():
    with refused("8 (devices)", "model_devices=3"):
        task_of(config_with(**CUT | {"compute__model_devices": 3}))
    config = config_with(**CUT)
    (group,) = programs(config, read_axes(config, ["server.rate=0.1,0.2"]))
    with refused("model_devices=1 in a sweep", "model_devices=4"):
        outline(group, None)
    heaprix = {"algorithm": "fedsketch", "sketch__query": "heaprix"}
    for own in ({"algorithm": "sketched_sgd"}, heaprix):
        with refused("model_devices=1", "sketches vectors"):
            task_of(config_with(**CUT | own))
    with refused("stored=False"):
        task_of(config_with(**CUT | {"sketch__stored": True}))


def test_a_model_that_cannot_be_cut_is_on_all_devices():
    mesh = engine.mesh_over(jax.devices(), 4)
    params = {"bias": jnp.zeros(7)}
    assert engine.layout(mesh, params, params)["bias"].spec == P()


def test_gradients_are_cut_where_devices_hold_a_model_together():
    """Else what they are made of may be gathered by every device."""
    mesh, tree = engine.mesh_over(jax.devices()[:8], 4), {"kernel": jnp.ones((6, 8))}
    played = jax.shard_map(
        trees.cut_here, mesh=mesh, in_specs=P(), out_specs=P(), axis_names={engine.AXIS}
    )
    assert jax.jit(played)(tree)["kernel"].sharding.spec == P(None, engine.MODEL)
    assert trees.cut_here(tree)["kernel"] is tree["kernel"]
