"""A round costs what its cohort costs, however many clients there are."""

import jax
import pytest

from configs import million_clients
from fl_sketch.core import secret
from fl_sketch.data.batches import resident
from fl_sketch.engine.loop import initial
from fl_sketch.engine.rounds import advance_of
from fl_sketch.run import prepare

pytestmark = pytest.mark.slow

FEW, MANY = 1000, 1_000_000


def compiled(population):
    """Returns (the program, its arguments but for the count) at a population."""
    config = million_clients.get_config()
    config.compute.devices = 2
    config.data.clients = population
    config.data.name = f"synthetic/{3 * population}"
    setup = prepare(config)
    experiment, roots = setup.experiment, setup.roots()
    where = experiment.everywhere
    data = resident(*experiment.clients, device=where)
    state, roots = initial(experiment, roots).state, secret.placed(roots, where)
    arguments = [{}, state, roots, data]
    rounds = jax.jit(advance_of(experiment), donate_argnums=1)
    return rounds.lower(*arguments, 0).compile(), arguments


def test_only_the_partition_grows_with_the_population():
    def apart_from_data(program, arguments):
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[3]))
        sizes = program.memory_analysis()
        assert sizes.argument_size_in_bytes < held + 4096
        return sizes.temp_size_in_bytes, sizes.output_size_in_bytes

    (few, out), (many, same_out) = (
        apart_from_data(*compiled(population)) for population in (FEW, MANY)
    )
    # For small populations a cohort is the beginning of a shuffle of all.
    assert many <= few < 64 * 1024
    assert out == same_out
