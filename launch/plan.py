r"""Prints the bytes, seconds and memory of a config, before a run.

python -m launch.plan --config=configs/quickstart.py
python -m launch.plan --config=configs/default.py --graph=ring

--graph adds the bytes of the same messages in a network without a server. It is ring,
grid:4x5, regular:3, complete or a file of edges.

To forecast seconds and memory, rounds of a few clients are compiled and timed; --notime
skips this. --suggest adds the rates that were tuned for the algorithm in results/, for
messages of about the same length first.
"""

from absl import flags

from fl_sketch.engine import graph as graphs
from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.experiments import forecast, plan, suggest
from fl_sketch.run import prepare
from fl_sketch.run.task import of_setup
from launch import command, options, parsing, reproductions

CONFIG = parsing.config_flag()
DATA_DIR = options.data_dir()
GRAPH = flags.DEFINE_string("graph", None, f"Network without a server: {graphs.WORDS}.")
TIME = flags.DEFINE_bool("time", True, "Whether to forecast seconds and memory.")
SUGGEST = flags.DEFINE_bool(
    "suggest", False, "Whether to print the rates that were tuned for its algorithm."
)
flags.mark_flag_as_required("config")


def main():
    """Prints the plan of --config."""
    setup, graph = prepare(CONFIG.value, DATA_DIR.value), None
    task, config = of_setup(setup), setup.config
    if GRAPH.value:
        graph = graphs.named(GRAPH.value, config.data.clients)
    for line in plan.lines(config, task, graph=graph):
        print(line)
    for line in suggested(config, task.facts) if SUGGEST.value else ():
        print(line)
    for line in forecast.lines(setup) if TIME.value else ():
        print(line)


def suggested(config, facts) -> list[str]:
    """Returns lines with the rates that were tuned in the folder of results."""
    results = reproductions.RESULTS
    if not results.is_dir():
        msg = f"Expected --suggest in a clone of the project, got none at {results}."
        raise ValueError(msg)
    found = [
        one
        for folder, compared in reproductions.compared()
        for one in suggest.tuned_in(folder, compared, results=results)
    ]
    up = facts["bytes_up_planned"] or FLOAT_BYTES * facts["sketch_size"]
    return suggest.lines(config, FLOAT_BYTES * facts["d"] / up, found)


if __name__ == "__main__":
    command.run(main)
