"""Publishes a finished private run: its parameters, its promise and a page on both.

python -m launch.train --config=configs/private_safl.py --workdir=/tmp/private_digits
python -m launch.release --workdir=/tmp/private_digits --out=/tmp/to_publish

The folder gets four files and nothing of any client: params.safetensors (or with
--format=npz params.npz), params.json, privacy.json and MODEL.md. Neither the data set
nor the model is needed for it. A simulated run (privacy.randomness=seed) is refused.
"""

from absl import flags

from fl_sketch.workdir import release
from launch import command

WORKDIR = flags.DEFINE_string("workdir", None, "The folder of a finished private run.")
OUT = flags.DEFINE_string("out", None, "The folder to publish, new or empty.")
FORMAT = flags.DEFINE_enum(
    "format", release.FORMS[0], release.FORMS, "How parameters are written."
)
flags.mark_flags_as_required(["workdir", "out"])


def main():
    """Writes what may be published of the run in --workdir to the folder --out."""
    for line in release.release(WORKDIR.value, OUT.value, FORMAT.value):
        print(line)


if __name__ == "__main__":
    command.run(main)
