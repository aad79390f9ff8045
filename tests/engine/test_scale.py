"""The peak memory of a process does not follow the size of the cohort."""

import resource
import subprocess
import sys

import jax
import numpy as np
import pytest

from fl_sketch import algorithms, engine, models, sketch, transforms
from fl_sketch.data import batches as draws
from fl_sketch.data import datasets, partition
from fl_sketch.data.examples import Examples
from tests.launching import ENVIRONMENT
from tests.meshes import mesh_of

pytestmark = pytest.mark.slow

POPULATION, EXAMPLES, ROUNDS = 5000, 1000, 1


def peak():
    """Returns the most memory that this process has held so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peaks_of(cohort):
    """Returns the peaks before and after rounds of LeNet on cohorts of this size."""
    loss = models.classification(models.build("lenet", 10))
    inputs = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 28, 28, 1), np.uint8)
    examples = Examples(inputs, np.arange(EXAMPLES, dtype=np.int32) % 10)
    indices = np.arange(3 * POPULATION, dtype=np.int32) % EXAMPLES
    starts = 3 * np.arange(POPULATION + 1)
    data = draws.resident(examples, partition.Partition(indices, starts))

    def value(params, batch):
        return loss.value(params, datasets.normalise(batch.inputs), batch.targets)

    def fetch(data, client, plan, key):
        del plan
        return draws.batches(data, key, client, steps=1, batch=2)

    algorithm = algorithms.safl(
        value,
        sketch=sketch.count_sketch(600),
        client_rate=0.1,
        server=transforms.paper_amsgrad(0.01),
    )
    one_round = jax.jit(engine.make_round(algorithm, fetch, mesh_of(1, "clients")))
    people = engine.fixed_size(POPULATION, cohort)

    def rounds(state, key, data, count):
        return engine.run_rounds(
            one_round, people, state, key, data, count, most=ROUNDS
        )

    params = loss.init(jax.random.key(0), datasets.normalise(inputs[:1]))
    state = engine.initial_state(algorithm, params, POPULATION)
    run = jax.jit(rounds, donate_argnums=0)
    run = run.lower(state, jax.random.key(1), data, ROUNDS).compile()
    before = peak()
    state, report = run(state, jax.random.key(1), data, ROUNDS)
    assert int(report.simulator_only.answered.sum()) == ROUNDS * cohort
    return before, peak()


def test_a_cohort_of_2048_needs_no_more_memory_than_one_of_64():
    # What compiling takes differs by a tenth from time to time: it is left out.
    program = "import sys; from tests.engine.test_scale import peaks_of; "
    program += "print(*peaks_of(int(sys.argv[1])))"

    def measured(cohort):
        command = [sys.executable, "-c", program, str(cohort)]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        return [float(number) for number in done.stdout.split()]

    (before, small), (later, large) = measured(64), measured(2048)
    assert large - later <= small - before + 0.1 * small
