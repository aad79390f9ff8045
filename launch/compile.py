r"""Compiles a round for TPUs or GPUs that this machine does not have.

python -m launch.compile --config=configs/default.py --topology=v5e:2x2
python -m launch.compile --config=configs/default.py --platform=cuda --devices=8

For TPUs it prints the memory of a chip, whether the round fits, every collective with
its type and size, and the bytes that a chip sends in a round. It needs no TPU, but
libtpu (pip install libtpu). For GPUs it only lowers the round. --most also searches for
the largest number of clients that fit on a chip at a time; this compiles several times.
"""

import pathlib

import jax
from absl import flags

from configs import default
from fl_sketch.core import files
from fl_sketch.experiments.aot import memory, placing, report, topology
from fl_sketch.run import prepare
from launch import command, options, parsing

CONFIG = parsing.config_flag()
TOPOLOGY = flags.DEFINE_string(
    "topology", None, "TPU topology, such as v5e:4x4 or v5p:2x2x1."
)
PLATFORM = flags.DEFINE_enum("platform", "tpu", ["tpu", "cuda"], "Target platform.")
DEVICES = flags.DEFINE_integer("devices", 1, "Number of GPUs, for --platform=cuda.")
MOST = flags.DEFINE_bool("most", False, "Search for the most clients at a time.")
OUT = flags.DEFINE_string("out", None, "csv file to append a row to.")
NAME = flags.DEFINE_string("name", "", "Name of the row that --out gets.")
DATA_DIR = options.data_dir()
flags.mark_flag_as_required("config")
OFF_CHIPS = {"data": "streamed", "clients": "host"}  # on the host in a run


def main():
    """Prints the round of --config on --topology, or on --devices GPUs."""
    config, gpus = CONFIG.value, PLATFORM.value == "cuda"
    _require_flags(gpus)
    jax.config.update("jax_platforms", "cpu")  # whatever accelerator is here
    if OUT.value:
        files.writable_file(OUT.value)
    if config.compute.devices:
        msg = (
            "config.compute: Expected devices=0 (--topology or --devices sets the "
            f"number), got devices={config.compute.devices}."
        )
        raise ValueError(msg)
    model = config.compute.model_devices
    mesh = (
        topology.of_gpus(DEVICES.value, model)
        if gpus
        else topology.of_tpus(TOPOLOGY.value, model)
    )
    command.print_notes(config, default.get_config())
    for key, value in OFF_CHIPS.items():
        if config.compute[key] == value:
            print(f"note: the memory counts compute.{key}={value} as on the chips")
    setup = prepare(config, DATA_DIR.value, mesh=mesh)
    lowered = placing.lower(setup)
    if gpus:
        print(*report.lines_of_lowered(lowered), sep="\n")
        return
    placed = placing.place(lowered)
    print(*report.lines(placed), sep="\n", flush=True)
    most = memory.most_clients(setup, placed) if MOST.value else None
    if most is not None:
        print(f"most clients at a time on a chip: {most}")
    if OUT.value:
        own = {"name": NAME.value, "topology": TOPOLOGY.value}
        kept = files.read_rows(OUT.value) if pathlib.Path(OUT.value).exists() else []
        files.write_rows(OUT.value, [*kept, own | report.row(placed, most)])
    memory.require_fit(config, placed)


def _require_flags(gpus: bool) -> None:
    """Raises for flags of the other platform."""
    if gpus == (TOPOLOGY.value is not None):
        got = "--platform=cuda with it" if gpus else "--platform=tpu without it"
        msg = f"Expected --topology with --platform=tpu only, got {got}."
        raise ValueError(msg)
    unread = ("most", "out", "name") if gpus else ("devices",)
    for name in unread:
        if flags.FLAGS[name].present:
            kind = "tpu" if gpus else "cuda"
            msg = (
                f"Expected --{name} with --platform={kind} only, got another platform."
            )
            raise ValueError(msg)


if __name__ == "__main__":
    command.run(main, keep=False)  # jax cannot read programs for absent chips back
