"""A config's round, lowered and compiled for devices that need not be here."""

import math
import re
import time
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import engine
from fl_sketch.config import parse
from fl_sketch.core import trees
from fl_sketch.data import batches as client_batches
from fl_sketch.engine.cohort import of_round
from fl_sketch.experiments.aot import topology
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import secrets

# How the compiler says that a round does not fit, and sizes in what it says.
TOO_MUCH = re.compile(r"Ran out of memory (on|in memory space) hbm", re.IGNORECASE)
SIZE = re.compile(r"\b(\d+(?:\.\d+)?)([KMG])\b")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Lowered(NamedTuple):
    """A round before it is compiled.

    Attributes:
      program: the round as jax hands it to a compiler.
      mesh: the devices; of GPUs, which are of no kind, an abstract one.
      d: the number of the model's parameters.
      numbers: the numbers that a client sends, in all exchanges.
      places: the number of places of a cohort.
      chunk: the clients that a row of devices works on at a time.
      given: the bytes of each device that state and data take.
      seconds: the time that tracing and lowering took.
    """

    program: Any
    mesh: Mesh
    d: int
    numbers: int
    places: int
    chunk: int
    given: int
    seconds: float


class Placed(NamedTuple):
    """A round that was compiled.

    Attributes:
      lowered: the round before that.
      arguments: the bytes of each device that state and data take, and code where the
        round fits.
      temporaries: the bytes beside, of each device, while the round is played.
      room: the bytes that a device has.
      text: the compiled program; empty: the compiler says that it does not fit.
      seconds: the time that the compiler took.
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
    mesh = cast(Mesh, mesh)
    numbers, same = parse.numbers_of(config), NamedSharding(mesh, P())
    secret = setup.secret()
    roots = jax.eval_shape(lambda: secrets.roots(config.seed, secret))
    shares, train = setup.shares(config.seed), setup.splits.train
    dealt = (part.astype(np.int32) for part in (shares.indices, shares.starts))
    data: Any = (client_batches.in_rows(train), *dealt)
    state = jax.eval_shape(lambda roots: setup.start(numbers, roots), roots)
    where = engine.layout(mesh, state.server.params, state)
    play = setup.play(numbers)

    def one_round(state, roots, data):
        data = client_batches.Resident(*data)
        cohort = of_round(play.people(data.starts), roots, state.server.round)
        return play.one_round(state, roots, cohort, data)

    everywhere = jax.tree.map(lambda leaf: same, (roots, data))
    given = jax.tree.map(_at, (state, roots, data), (where, *everywhere))
    program = jax.jit(one_round, donate_argnums=0, out_shardings=(where, same))
    sent, d = setup.talk.sent, trees.size(trees.trained(setup.params))
    program = program.trace(*given).lower(lowering_platforms=(platform,))
    given = sum(map(_bytes_of, jax.tree.leaves(given)))
    sizes = setup.sampler.places, setup.chunk, given
    return Lowered(program, mesh, d, sum(sent), *sizes, time.perf_counter() - begin)


def _at(leaf: Any, where: NamedSharding) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array that lies there."""
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=where)


def _bytes_of(leaf: jax.ShapeDtypeStruct) -> int:
    """Returns what each device holds of an array; of a key, its numbers."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
        return leaf.size * leaf.dtype.itemsize
    shape = cast(NamedSharding, leaf.sharding).shard_shape(leaf.shape)
    return math.prod(shape) * leaf.dtype.itemsize


def place(lowered: Lowered) -> Placed:
    """Returns a round compiled for its TPUs, or what the compiler says of its memory.

    Args:
      lowered: the round, lowered for TPUs.
    """
    begin, room = time.perf_counter(), topology.memory(lowered.mesh)
    try:
        with topology.own_flags():
            compiled = lowered.program.compile()
    except jax.errors.JaxRuntimeError as error:
        if not TOO_MUCH.search(str(error)):
            raise
        taken = _taken(str(error))
        seconds = time.perf_counter() - begin
        return Placed(lowered, lowered.given, taken - lowered.given, room, "", seconds)
    seconds, found = time.perf_counter() - begin, compiled.memory_analysis()
    arguments = found.argument_size_in_bytes + found.generated_code_size_in_bytes
    fresh = found.output_size_in_bytes - found.alias_size_in_bytes
    temporaries = found.temp_size_in_bytes + fresh
    return Placed(lowered, arguments, temporaries, room, compiled.as_text(), seconds)


def _taken(error: str) -> int:
    """Returns the bytes that a round would take, by the compiler's own line.

    That names them and the bytes that there are, which are fewer.
    """
    line = next(line for line in error.splitlines() if TOO_MUCH.search(line))
    found = SIZE.findall(line)
    return int(max(float(size) * UNITS[unit] for size, unit in found))
