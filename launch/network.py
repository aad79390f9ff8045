r"""Trains with sites that keep their data: each is a process, or a machine, of its own.

python -m launch.network --config=configs/quickstart.py --sites=5 --workdir=/tmp/net \
    --config.cohort.sampling=everyone
python -m launch.network kits --sites=hospital_a,hospital_b --server=HOST --out=KITS
python -m launch.network --config=FILE --kits=KITS --sites=hospital_a,hospital_b \
    --server=HOST --workdir=RUN

The first deals a data set to five sites, starts them and a server on this machine, and
leaves the folder that launch.train would. The second makes kits for several machines,
and the third runs a config with them. The same command again resumes. See
docs/network.md.
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
ASKS = flags.DEFINE_list("asks", ["measured"], "What sites may tell: size, measured.")
MADE = flags.DEFINE_string("kits", None, "The folder of kits; none: on this machine.")
SERVER = flags.DEFINE_string("server", "localhost", "The name of the server of kits.")
OUT = flags.DEFINE_string("out", None, "The folder for kits.")
flags.mark_flag_as_required("sites")


def main():
    """Makes kits, or runs --config with the sites of kits or of this machine."""
    if importlib.util.find_spec("nvflare") is None:
        msg = "Expected NVFlare for the messages: pip install fl_sketch[nvflare]."
        raise ValueError(msg)
    from fl_sketch.network import kits

    names = _names()
    if WORD:
        out = files.writable_folder(OUT.value or "", "out")
        print(*kits.make(out, names, SERVER.value).lines(), sep="\n")
        return
    config, place = CONFIG.value, files.writable_folder(WORKDIR.value or "").absolute()
    if config is None:
        msg = "Expected --config, or kits as the first word, got neither."
        raise ValueError(msg)
    if config.data.clients != len(names):
        before, config.data.clients = config.data.clients, len(names)
        print(f"note: data.clients={len(names)}, the sites, in place of {before}")
    if not MADE.value:
        _run_here(config, place, names)
        return
    _run(config, place, names, kits.found(MADE.value, names, SERVER.value))


def _names() -> list[str]:
    """Returns the names of the sites."""
    from fl_sketch.network import kits

    count = int(SITES.value) if SITES.value.isdigit() else 0
    names = [f"site_{one}" for one in range(count)] if count else SITES.value.split(",")
    kits.require_names(names)
    return names


def _run_here(config, place: pathlib.Path, names: list[str]) -> None:
    """Runs a config with sites on this machine, whose data are dealt to them."""
    from fl_sketch.network import dealing, local_sites
    from fl_sketch.network import run as network
    from fl_sketch.workdir import folder

    here = place / "network"
    splits = dealing.deal(
        config, DATA_DIR.value, here / "sites", names=names, tells=ASKS.value
    )
    if (place / folder.SUMMARY).exists():  # its end is printed, or why it differs
        network.run(config, splits, place, send=lambda frames, seconds: {})
        return
    print(f"starting a server and {len(names)} sites, which takes a minute", flush=True)
    with local_sites.running(here, names) as made:
        _run(config, place, names, made, splits)


def _run(config, place, names, made, splits=None) -> None:
    """Runs a config with the server and the sites of kits, which are started."""
    from fl_sketch.network import job, nvflare
    from fl_sketch.network.coordinator import Rules

    splits = splits or job.test_data(config, DATA_DIR.value)
    rules = Rules(TIMEOUT.value, SMALLEST.value, ATTEMPTS.value)
    told = {"rules": rules, "asks": ASKS.value}
    nvflare.play(config, splits, place, made.admin, names, **told)


if __name__ == "__main__":
    del sys.argv[1 : 1 + bool(WORD)]
    command.run(main, waits=False)  # NVFlare's threads wait for servers that have ended
