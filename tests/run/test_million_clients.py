"""A round costs what its cohort costs, however many clients there are."""

import jax
import pytest

from configs import million_clients
from fl_sketch.config import parse
from fl_sketch.run import prepare
from fl_sketch.run.task import of_setup

pytestmark = pytest.mark.slow

FEW, MANY = 1000, 1_000_000


def compiled(population):
    """Returns (the program, its arguments but for the count) at a population."""
    config = million_clients.get_config()
    config.compute.devices = 2
    config.data.clients = population
    config.data.name = f"synthetic/{3 * population}"
    setup = prepare(config)
    task = of_setup(setup)
    roots = task.roots(task.secret)
    arguments = [task.start(roots), roots, setup.data(0)]
    play = setup.play(parse.numbers_of(setup.config))
    rounds = jax.jit(play.rounds, donate_argnums=0)
    return rounds.lower(*arguments, 0).compile(), arguments


def test_only_the_partition_grows_with_the_population():
    def apart_from_data(program, arguments):
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[2]))
        sizes = program.memory_analysis()
        assert sizes.argument_size_in_bytes < held + 4096
        return sizes.temp_size_in_bytes, sizes.output_size_in_bytes

    (few, out), (many, same_out) = (
        apart_from_data(*compiled(population)) for population in (FEW, MANY)
    )
    # For small populations a cohort is the beginning of a shuffle of all.
    assert many <= few < 64 * 1024
    assert out == same_out
