"""A config's round, lowered and compiled for devices that need not be here."""

import math
import re
import time
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from fl_sketch import engine
from fl_sketch.config import parse
from fl_sketch.core import trees
from fl_sketch.core.constants import as_argument, trees_of
from fl_sketch.data import batches as client_batches
from fl_sketch.engine.cohort import of_round
from fl_sketch.experiments.aot import topology
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import secrets

# The compiler's message for a round that does not fit, and the sizes in it.
TOO_MUCH = re.compile(r"Ran out of memory (on|in memory space) hbm", re.IGNORECASE)
SIZE = re.compile(r"\b(\d+(?:\.\d+)?)([KMG])\b")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Lowered(NamedTuple):
    """A round before it is compiled.

    Attributes:
      program: the round as jax gives it to a compiler.
      mesh: the devices; for GPUs, whose kind is not known, an abstract mesh.
      numbers: the numbers that a client sends, in all exchanges.
      chunk: the clients that a row of devices works on at a time.
      inputs: the bytes of each device that state and data take.
    """

    program: Any
    mesh: Mesh
    d: int
    numbers: int
    places: int
    chunk: int
    inputs: int
    seconds: float


class Placed(NamedTuple):
    """A compiled round; sizes are bytes of each device.

    Attributes:
      arguments: the size of state and data, and of code where the round fits.
      temporaries: the size of all else while the round runs.
      text: the compiled program; empty: the compiler says that it does not fit.
    """

    lowered: Lowered
    arguments: int
    temporaries: int
    room: float
    text: str
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether a device has the memory that the round takes."""
        return bool(self.text) and self.arguments + self.temporaries <= self.room


def lower(setup: Setup) -> Lowered:
    """Returns a round for the mesh of a setup, its data on every device."""
    begin, config, mesh = time.perf_counter(), setup.config, setup.mesh
    platform = "cuda" if isinstance(mesh, AbstractMesh) else "tpu"
    numbers, secret = parse.numbers_of(config), setup.secret()
    roots = jax.eval_shape(lambda: secrets.roots(config.seed, secret))
    data = client_batches.resident_shapes(setup.splits.train, setup.shares(config.seed))
    state = jax.eval_shape(lambda roots: setup.start(numbers, roots), roots)
    state = setup.placed(state)
    play = setup.play(numbers)

    def one_round(state, roots, data):
        cohort = of_round(play.sampler_for(data.starts), roots, state.server.round)
        return play.one_round(state, roots, cohort, data)

    def everywhere(leaf):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=setup.same)

    def cut(leaf, own):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=own)

    frozen = trees_of(setup.constants)
    frozen = jax.tree.map(cut, frozen, engine.layout(mesh, frozen, frozen))
    inputs = state, *jax.tree.map(everywhere, (roots, data)), frozen
    out = jax.tree.map(lambda leaf: leaf.sharding, state), setup.same
    one_round = as_argument(one_round, setup.constants)
    program = jax.jit(one_round, donate_argnums=0, out_shardings=out)
    program = program.trace(*inputs).lower(lowering_platforms=(platform,))
    return Lowered(
        program,
        mesh,
        d=trees.size(trees.trained(setup.params)),
        numbers=sum(setup.talk.sent),
        places=setup.sampler.places,
        chunk=setup.chunk,
        inputs=sum(map(_bytes_of, jax.tree.leaves(inputs))),
        seconds=time.perf_counter() - begin,
    )


def _bytes_of(leaf: jax.ShapeDtypeStruct) -> int:
    """Returns what each device holds of an array; of a key, its numbers."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
        return leaf.size * leaf.dtype.itemsize
    shape = cast(NamedSharding, leaf.sharding).shard_shape(leaf.shape)
    return math.prod(shape) * leaf.dtype.itemsize


def place(lowered: Lowered) -> Placed:
    """Returns a round compiled for the TPUs that it was lowered for.

    If it does not fit, its sizes are those of the compiler's message.
    """
    begin, room = time.perf_counter(), topology.memory(lowered.mesh)
    try:
        with topology.own_flags():
            compiled = lowered.program.compile()
    except jax.errors.JaxRuntimeError as error:
        if not TOO_MUCH.search(str(error)):
            raise
        line = next(line for line in str(error).splitlines() if TOO_MUCH.search(line))
        # It also names the bytes that a device has, which are fewer.
        sizes = (float(size) * UNITS[unit] for size, unit in SIZE.findall(line))
        temporaries, seconds = int(max(sizes)) - lowered.inputs, time.perf_counter()
        return Placed(lowered, lowered.inputs, temporaries, room, "", seconds - begin)
    seconds, memory = time.perf_counter() - begin, compiled.memory_analysis()
    arguments = memory.argument_size_in_bytes + memory.generated_code_size_in_bytes
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    temporaries = memory.temp_size_in_bytes + fresh
    return Placed(lowered, arguments, temporaries, room, compiled.as_text(), seconds)
