"""No operator holds more than two vectors beside its input, and none its matrix."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from fl_sketch import sketch

LARGE = 2**24
SMALL = 2**20
KEY = jax.random.key(0)

AT_LARGE = {
    "count_sketch": sketch.count_sketch(LARGE // 100),
    "five rows": sketch.count_sketch(LARGE // 1000, rows=5),
    "independent": sketch.count_sketch(LARGE // 100, hash="independent"),
    "polynomial": sketch.count_sketch(LARGE // 100, signs="polynomial"),
    "sparse one": sketch.sparse_embedding(LARGE // 100, 4),
    "sparse two": sketch.sparse_embedding(LARGE // 128, 4, kind="blocked"),
    "srht": sketch.srht(LARGE // 100),
    "uniform_sampling": sketch.uniform_sampling(LARGE // 100),
    "gaussian": sketch.gaussian(16),
    "ams": sketch.ams(16),
}


def allocated(function, *shapes):
    """Returns the bytes that XLA plans to allocate, its result included."""
    memory = jax.jit(function).lower(*shapes).compile().memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes


def all_kernels(op, d):
    x, s = jax.ShapeDtypeStruct((d,), jnp.float32), jax.eval_shape(op.zeros)
    yield op.apply, (KEY, x)
    for read in dict.fromkeys([op.transpose, op.estimate]):  # they may be the same
        yield lambda key, s, read=read: read(key, s, d), (KEY, s)
    yield lambda key, s, x: op.add_transpose(key, s, x, 0.1), (KEY, s, x)


@pytest.mark.parametrize("name", AT_LARGE)
def test_two_vectors_and_a_few_messages_are_enough(name):
    op = AT_LARGE[name]
    for kernel, arguments in all_kernels(op, LARGE):
        limit = 4 * (2 * LARGE + 4 * op.size() + 2**20)
        assert allocated(kernel, *arguments) <= limit


@pytest.mark.parametrize("make", [sketch.gaussian, sketch.ams])
def test_a_dense_matrix_is_never_held(make):
    op = make(1000)  # R would take 1000 vectors
    for kernel, arguments in all_kernels(op, SMALL):
        assert allocated(kernel, *arguments) <= 4 * (2 * SMALL + 4 * op.size() + 2**20)


MEASURE = """
import resource
import jax, jax.numpy as jnp
from fl_sketch import sketch

d, key = 2**24, jax.random.key(0)
op = {op}
apply, transpose = jax.jit(op.apply), jax.jit(lambda k, s: op.transpose(k, s, d))
apply.lower(key, jax.ShapeDtypeStruct((d,), jnp.float32)).compile()
x = jax.block_until_ready(jnp.ones(d))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
s = jax.block_until_ready(apply(key, x))
after_apply = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
jax.block_until_ready(transpose(key, s))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after_apply - before) * 1024 / (4 * d), (after - before) * 1024 / (4 * d))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "vectors"),
    [("sketch.count_sketch(d // 100)", 0.5), ("sketch.srht(d // 100)", 2.0)],
)
def test_the_operating_system_sees_no_more_than_xla_plans(op, vectors):
    command = [sys.executable, "-c", MEASURE.format(op=op)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    by_apply, by_both = map(float, printed.split())
    code_and_slack = 0.5  # compiling takes some of the 64 MB that a vector is
    assert by_apply <= vectors + code_and_slack
    assert by_both <= max(vectors, 1) + 2 * code_and_slack
