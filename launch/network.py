r"""Trains with sites that keep their data, on machines of their own or in one process.

python -m launch.network --config=configs/quickstart.py --sites=5 --workdir=/tmp/net \
    --config.cohort.sampling=everyone
python -m launch.network kits --sites=hospital_a,hospital_b --server=HOST --out=KITS
python -m launch.network --config=FILE --kits=KITS --sites=hospital_a,hospital_b \
    --server=HOST --workdir=RUN

The first splits a data set among five sites, plays them in this process, and leaves the
folder that launch.train would. The second makes kits for several machines, and the
third runs a config with them. The same command again resumes. See docs/network.md.
"""

import importlib.util
import pathlib
import sys

from absl import flags

from fl_sketch.core import files
from launch import command, options, parsing

WORD = sys.argv[1] if sys.argv[1:2] == ["kits"] else ""
CONFIG = parsing.config_flag()
SITES = flags.DEFINE_string("sites", None, "How many, or their names: a,b,c.")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
DATA_DIR = options.data_dir()
TIMEOUT = flags.DEFINE_float("timeout", 60.0, "Seconds that a site has for an answer.")
SMALLEST = flags.DEFINE_integer("smallest", 1, "The fewest sites of a released round.")
ATTEMPTS = flags.DEFINE_integer("attempts", 10, "How often a round is asked for.")
KITS = flags.DEFINE_string("kits", None, "The folder of kits; none: in one process.")
SERVER = flags.DEFINE_string("server", "localhost", "The name of the server of kits.")
OUT = flags.DEFINE_string("out", None, "The folder for kits.")
flags.mark_flag_as_required("sites")


def main():
    """Makes kits, or runs --config with the sites of kits or of this process."""
    count = int(SITES.value) if SITES.value.isdigit() else 0
    names = [f"site_{one}" for one in range(count)] or SITES.value.split(",")
    if WORD:
        made = _nvflare().make_kits(
            files.writable_folder(OUT.value or "", "out"), names, SERVER.value
        )
        for name, place in {"the server": made.server, **made.sites}.items():
            print(f"{name}: {place}; there: startup/start.sh")
        kits = made.admin.parents[2]
        print(f"the coordinator: {made.admin}; --kits={kits} needs it")
        return
    config, place = CONFIG.value, files.writable_folder(WORKDIR.value or "").absolute()
    if config is None:
        msg = "Expected --config, or kits as the first word, got neither."
        raise ValueError(msg)
    if config.data.clients != len(names):
        before, config.data.clients = config.data.clients, len(names)
        print(f"note: data.clients={len(names)}, the sites, in place of {before}")
    from fl_sketch import network
    from fl_sketch.network import job

    rules = network.Rules(TIMEOUT.value, SMALLEST.value, ATTEMPTS.value)
    if not KITS.value:
        network.in_one_process(config, place, DATA_DIR.value, names=names, rules=rules)
        return
    kits = _nvflare().kits_in(pathlib.Path(KITS.value), names, SERVER.value)
    if not kits.admin.is_dir():
        msg = f"Expected the coordinator's kit in {kits.admin}, got none."
        raise ValueError(msg)
    splits = job.test_data(config, DATA_DIR.value)
    _nvflare().play(config, splits, place, kits.admin, names, rules=rules)


def _nvflare():
    """Returns the module that needs NVFlare."""
    if importlib.util.find_spec("nvflare") is None:
        msg = "Expected NVFlare for kits: pip install -e '.[nvflare]' in the clone."
        raise ValueError(msg)
    from fl_sketch.network import nvflare

    return nvflare


if __name__ == "__main__":
    del sys.argv[1 : 1 + bool(WORD)]
    command.run(main, waits=False)  # NVFlare's threads wait for servers that have ended
