"""Times sketches, models and rounds, and compares them with other implementations.

python -m launch.benchmark --suite=engine --workloads=W2 --out=/tmp/rows.jsonl
python -m launch.benchmark --suite=models --models=W2
python -m launch.benchmark --suite=sketch --sizes=1000000 --operators=srht --torch
python -m launch.benchmark --suite=peers --workloads=W2 --torch_python=VENV/bin/python
"""

import importlib.util
import json
import os
import platform

import jax
from absl import flags

from fl_sketch.core import files
from fl_sketch.experiments.bench import (
    engine_suite,
    error_suite,
    integers_suite,
    model_suite,
    peers_suite,
    sketch_suite,
)
from fl_sketch.experiments.bench.engine_forms import FORMS
from fl_sketch.experiments.bench.peers.inputs import WORKLOADS
from fl_sketch.experiments.bench.peers_suite import PEERS
from fl_sketch.experiments.bench.workloads import USUAL
from launch import command

SUITES = {  # with the flags that are arguments of its `run`
    "sketch": (sketch_suite, "sizes compressions clients operators torch"),
    "engine": (engine_suite, "workloads forms rounds chunk cohort forecast"),
    "models": (model_suite, "models model_forms rounds cohort"),
    "peers": (peers_suite, "peers workloads rounds cohort tf32 torch_python"),
    "error": (error_suite, "draws"),
    "integers": (integers_suite, ""),
}
SUITES = {name: (suite, own.split()) for name, (suite, own) in SUITES.items()}
SUITE = flags.DEFINE_enum("suite", "sketch", list(SUITES), "Benchmark suite to run.")
OUT = flags.DEFINE_string("out", None, "File to append the JSON lines to.")

# Of the suite of sketches.
flags.DEFINE_multi_integer("sizes", [10**6, 2**24], "Vector lengths d.", 2)
flags.DEFINE_multi_integer("compressions", [10, 100, 1000], "Compressions d / b.", 1)
flags.DEFINE_multi_integer("clients", [1, 16], "Vectors sketched at once.", 1)
_ALL = list(sketch_suite.OPERATORS)
flags.DEFINE_multi_enum("operators", _ALL, _ALL, "Sketch operators to time.")
flags.DEFINE_bool("torch", False, "Also time PyTorch, if installed.")

# Of the suite of the engine.
flags.DEFINE_multi_enum("workloads", list(USUAL), list(WORKLOADS), "Workloads.")
flags.DEFINE_multi_enum("forms", FORMS, FORMS, "Forms of a round to time.")
flags.DEFINE_integer("rounds", 21, "Timed rounds of each form.", 3)
flags.DEFINE_integer("chunk", 0, "Clients at a time on a device; 0 = automatic.", 0)
flags.DEFINE_integer("cohort", 0, "Clients per round; 0 = that of the workload.", 0)
flags.DEFINE_bool("forecast", False, "Also print the forecast of launch.plan.")

# Of the suite of models, besides rounds and cohort.
_ALL = list(model_suite.FORMS)
flags.DEFINE_multi_enum("model_forms", _ALL, _ALL, "Model forms to time.")
_ALL = list(model_suite.MODELS)
flags.DEFINE_multi_enum("models", _ALL, _ALL, "Models to time.")

# Of the suite of peers, which also has workloads, rounds and a cohort.
flags.DEFINE_multi_enum("peers", [], list(PEERS), "Peers; default: all that run.")
flags.DEFINE_string("torch_python", None, "Python with PyTorch and pfl.")
flags.DEFINE_bool("tf32", True, "Allow TF32 on a GPU, for all peers alike.")
flags.DEFINE_integer("draws", 100, "Number of hash draws.", lower_bound=2)

for name in sorted({name for _, names in SUITES.values() for name in names}):
    owners = [suite for suite, (_, names) in SUITES.items() if name in names]
    flags.register_multi_flags_validator(
        ["suite", name],
        lambda given, owners=owners, name=name: (
            given["suite"] in owners or not flags.FLAGS[name].present
        ),
        f"--{name} is a flag of --suite={' and '.join(owners)} only",
    )

flags.register_validator(
    "torch",
    lambda wanted: not wanted or importlib.util.find_spec("torch"),
    "torch is not installed in this environment",
)


def main():
    """Prints a suite's table row by row, then the same rows as JSON lines."""
    if SUITE.value == "sketch":
        jax.config.update("jax_num_cpu_devices", 1)  # a kernel may use all cores
    if OUT.value:
        files.writable_file(OUT.value)
    suite, names = SUITES[SUITE.value]
    growing = suite.run(**{name: flags.FLAGS[name].value for name in names})
    device = jax.devices()[0]
    machine = {
        "device": f"{device.platform} {device.device_kind}",
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(machine))
    measured = suite.TABLE.record(growing)
    lines = [json.dumps(row._asdict() | machine) for row in measured]
    print("\n".join(lines))
    with open(OUT.value or os.devnull, "a") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    command.run(main, keep=False)  # the time to compile is a measurement
