"""A client's model on several devices: the same rounds, with its arrays cut."""

import functools

import chex
import jax
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch import engine
from fl_sketch.engine.loop import initial
from fl_sketch.engine.rounds import compile_rounds
from fl_sketch.run import from_config, prepare
from fl_sketch.sweep.dry_run import program_of
from fl_sketch.sweep.grid import programs, read_axes
from tests.run import configs
from tests.run.configs import config_with, refused

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


@functools.cache
def after_two_rounds(algorithm, devices):
    """Returns the state of a run of models in four parts, on so many devices."""
    setup = prepare(
        config_with(**CUT, algorithm=algorithm),
        mesh=engine.mesh_over(jax.devices()[:devices], min(4, devices)),
    )
    experiment, roots = setup.experiment, setup.roots()
    state = initial(experiment, roots).state
    return compile_rounds(experiment, state, roots)(state, 0, 2)[0]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [4, 8])  # one row, and two
@pytest.mark.parametrize("algorithm", ["safl", "scaffold"])
def test_rounds_on_rows_of_four_are_those_of_one_device(algorithm, devices):
    """Up to rounding: sums within a layer are added up in another order."""
    one, several = (after_two_rounds(algorithm, of) for of in (1, devices))
    close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-5)
    close(jax.device_get(one), jax.device_get(several))


def test_what_is_shaped_like_the_model_is_cut_and_all_else_is_everywhere():
    begun = configs.begun(config_with(**CUT, algorithm="scaffold"))
    kernel = begun.server.params["dense1"]["kernel"]
    assert kernel.sharding.spec == P(None, engine.MODEL)
    assert dict(kernel.sharding.mesh.shape) == {"clients": 2, "model": 4}
    shapes = {leaf.shape for leaf in jax.tree.leaves(begun.server.params)}
    leaves = jax.tree.leaves(begun)
    cut = [leaf for leaf in leaves if engine.MODEL in leaf.sharding.spec]
    assert {leaf.shape for leaf in cut} > {kernel.shape, (8, *kernel.shape)}
    assert all(leaf.shape in shapes or leaf.shape[1:] in shapes for leaf in cut)
    assert begun.server.round.sharding.spec == P()


def test_where_clients_alone_are_shared_out_it_is_refused():
    with refused("8 (devices)", "model_devices=3"):
        from_config(config_with(**CUT | {"compute__model_devices": 3}))
    config = config_with(**CUT)
    (group,) = programs(config, read_axes(config, ["server.rate=0.1,0.2"]))
    with refused("model_devices=1 in a sweep", "model_devices=4"):
        program_of(group, None)
    heaprix = {"algorithm": "fedsketch", "sketch__query": "heaprix"}
    for own in ({"algorithm": "sketched_sgd"}, heaprix):
        with refused("model_devices=1", "sketches vectors"):
            from_config(config_with(**CUT | own))
    with refused("stored=True"):
        from_config(config_with(**CUT | {"sketch__stored": True}))
