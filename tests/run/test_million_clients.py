"""A round costs what its cohort costs, however many clients there are."""

import time

import jax
import numpy as np
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


@pytest.fixture(scope="module", name="both")
def few_and_many():
    return compiled(FEW), compiled(MANY)


def test_only_the_partition_grows_with_the_population(both):
    def apart_from_data(program, arguments):
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[2]))
        sizes = program.memory_analysis()
        assert sizes.argument_size_in_bytes < held + 4096
        return sizes.temp_size_in_bytes, sizes.output_size_in_bytes

    (few, out), (many, same_out) = (apart_from_data(*one) for one in both)
    # For small populations a cohort is the beginning of a shuffle of all.
    assert many <= few < 64 * 1024
    assert out == same_out


def test_a_round_takes_as_long_in_a_population_of_a_million(both):
    seconds = {FEW: [], MANY: []}
    for _ in range(15):
        for (program, arguments), taken in zip(both, seconds.values(), strict=True):
            begin = time.perf_counter()
            state, _ = program(*arguments, 20)
            jax.block_until_ready(state)
            taken.append(time.perf_counter() - begin)
            arguments[0] = state
    few, many = (np.min(taken[3:]) for taken in seconds.values())
    assert many < 3 * few  # of a thousand times the population, on a busy machine
