"""Exports a finished private run for publication, with its privacy guarantee.

python -m launch.train --config=configs/private_safl.py --workdir=/tmp/private_digits
python -m launch.release --workdir=/tmp/private_digits --out=/tmp/to_publish

The new folder gets four files, none of which holds data of a client:
params.safetensors, params.json, privacy.json and MODEL.md. The command needs neither
the data set nor the code of the model. It refuses a simulated run
(privacy.randomness=seed).
"""

from absl import flags

from fl_sketch.workdir import release
from launch import command

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a finished private run.")
OUT = flags.DEFINE_string("out", None, "Folder to write, new or empty.")
flags.mark_flags_as_required(["workdir", "out"])


def main():
    """Writes the files for publication of the run in --workdir to --out."""
    for line in release.release(WORKDIR.value, OUT.value):
        print(line)


if __name__ == "__main__":
    command.run(main)
