r"""The memory of a round on TPUs that are not here, by their own compiler.

python -m experiments.accelerators --config=configs/accelerators.py:vit \
    --topology=v5e:2x2 --data_dir=DATA --out=rows.csv

It needs `pip install '.[tpu]'`. If a round does not fit, the compiler's error says what
it would take. Data is counted as on the chips.
"""

import os
import pathlib
from unittest import mock

import jax
from absl import flags
from jax.experimental import topologies

from fl_sketch import engine
from fl_sketch.core import files
from fl_sketch.core.constants import as_argument, trees_of
from fl_sketch.data import batches
from fl_sketch.engine.rounds import advance_of
from fl_sketch.run import prepare
from launch import command, options, parsing

# Without these the compiler's library asks a network, or warns.
QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
CONFIG, DATA_DIR = parsing.config_flag(), options.data_dir()
TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x2", "TPUs, such as v5e:4x4.")
OUT = flags.DEFINE_string("out", None, "csv file to append a row to.")
NAME = flags.DEFINE_string("name", "", "Name of the row.")
flags.mark_flag_as_required("config")


def main():
    """Prints the bytes that the round takes of each chip."""
    config = CONFIG.value
    jax.config.update("jax_platforms", "cpu")
    jax.devices()  # has read XLA_FLAGS, which the compiler for TPUs does not know
    with mock.patch.dict(os.environ, QUIET):
        os.environ.pop("XLA_FLAGS", None)
        slice_of = topologies.get_topology_desc(TOPOLOGY.value, platform="tpu")
        mesh = engine.mesh_over(slice_of.devices, config.compute.model_devices)
        setup = prepare(config, DATA_DIR.value, mesh=mesh)
        memory = compiled(setup).memory_analysis()
    arguments = memory.argument_size_in_bytes + memory.generated_code_size_in_bytes
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    row = {
        "name": NAME.value,
        "topology": TOPOLOGY.value,
        "arguments_gib": round(arguments / 2**30, 4),
        "temporaries_gib": round((memory.temp_size_in_bytes + new) / 2**30, 4),
    }
    print(*(f"{name}={value}" for name, value in row.items()))
    if OUT.value:
        kept = files.read_rows(OUT.value) if pathlib.Path(OUT.value).exists() else []
        files.write_rows(OUT.value, [*kept, row])


def compiled(setup):
    """Returns a round compiled for the mesh of a setup."""
    experiment, constants = setup.experiment, setup.experiment.constants
    roots, frozen = setup.roots(), trees_of(constants)
    data = batches.resident_shapes(*experiment.clients)
    state = experiment.placed(
        jax.eval_shape(
            lambda key: experiment.start(experiment.hyperparameters, key), roots.public
        )
    )

    def one_round(state, roots, data):
        return advance_of(experiment)({}, state, roots, data, 1)

    def shape(leaf, sharding):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)

    same = experiment.everywhere
    roots, data = jax.tree.map(lambda leaf: shape(leaf, same), (roots, data))
    frozen = jax.tree.map(shape, frozen, engine.layout(setup.mesh, frozen, frozen))
    program = jax.jit(
        as_argument(one_round, constants),
        donate_argnums=0,
        out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, state), same),
    ).trace(state, roots, data, frozen)
    return program.lower(lowering_platforms=("tpu",)).compile()


if __name__ == "__main__":
    command.run(main, keep=False)  # jax cannot read programs for absent chips back
