"""Times the parts of fl_sketch against a copy of the same memory.

python -m launch.benchmark --suite=sketch
python -m launch.benchmark --suite=sketch --sizes=1000000 --operators=srht --torch
"""

import importlib.util
import json
import os
import platform

import jax
from absl import app, flags, logging

from fl_sketch.bench import sketch_suite

SUITE = flags.DEFINE_enum("suite", "sketch", ["sketch"], "What to time.")
SIZES = flags.DEFINE_multi_integer("sizes", [10**6, 2**24], "Lengths d of the vector.")
COMPRESSIONS = flags.DEFINE_multi_integer("compressions", [10, 100, 1000], "d / b.")
CLIENTS = flags.DEFINE_multi_integer("clients", [1, 16], "How many vectors at once.")
OPERATORS = flags.DEFINE_multi_enum(
    "operators", list(sketch_suite.OPERATORS), list(sketch_suite.OPERATORS), "Which."
)
TORCH = flags.DEFINE_bool("torch", False, "Also time PyTorch, which must be installed.")
OUT = flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

flags.register_validator(
    "torch",
    lambda wanted: not wanted or importlib.util.find_spec("torch") is not None,
    "torch is not installed in this environment",
)
flags.register_validator(
    "out",
    lambda path: path is None or os.path.isdir(os.path.dirname(path) or "."),
    "the folder of this file does not exist",
)

COLUMNS = "{:26} {:16} {:>9} {:>8} {:>7} {:>10} {:>7} {:>9}  {}"


def main(argv):
    """Prints a table while it grows, then the same rows as JSON lines."""
    del argv
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    device = jax.devices()[0]
    machine = {
        "device": f"{device.platform} {device.device_kind}",
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(machine))
    head = ("operator", "kernel", "d", "b", "clients", "ms", "/ copy", "vectors", "")
    print(COLUMNS.format(*head))
    rows = []
    for row in sketch_suite.run(
        SIZES.value, COMPRESSIONS.value, CLIENTS.value, OPERATORS.value, TORCH.value
    ):
        rows.append(row)
        numbers = (row.milliseconds, row.ratio, row.extra_vectors)
        ms, ratio, vectors = ("" if n is None else f"{n:.3g}" for n in numbers)
        print(
            COLUMNS.format(
                row.operator, row.kernel, row.d, row.b, row.clients, ms, ratio, vectors,
                row.note,
            ),
            flush=True,
        )  # fmt: skip
    lines = [json.dumps(row._asdict() | machine) for row in rows]
    print("\n".join(lines))
    if OUT.value:
        with open(OUT.value, "a") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
