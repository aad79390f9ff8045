"""clients.csv: the examples, the bytes and the metrics of each client of a run.

In a private run it is for the simulator alone, in a folder of that name.
"""

import pathlib

import jax
import numpy as np

from fl_sketch.core import files
from fl_sketch.engine.client_metrics import by_client, summed_up
from fl_sketch.engine.loop import Result
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import rows

FILE = "clients.csv"


def write(setup: Setup, folder: pathlib.Path, result: Result) -> dict[str, float]:
    """Writes the table of a finished run; returns metrics over clients.

    It exists where clients hold examples back, on which the last model is measured, and
    where they may be absent.
    """
    config, experiment, book = setup.config, setup.experiment, result.state.ledger
    if not (config.data.held_out or experiment.cohort.dropout):
        return {}
    columns = {"client": np.arange(len(book.up))}
    owners, names = setup.splits.owners, setup.splits.owner_names
    if config.data.partition == "natural" and names and not experiment.private:
        assert owners is not None
        columns["name"] = np.array([names[owner] for owner in np.unique(owners)])
    found, summary = {}, {}
    if config.data.held_out:
        held, loss = setup.partition(config.seed)[1], setup.loss(setup.hyperparameters)

        def measure(params, examples, weights):
            return loss.report(loss.metrics(params, *examples, weights))

        params = jax.device_get(result.params)
        found = by_client(measure, setup.splits.train, held)(params)
        summary = summed_up(found, held.sizes > 0)
        columns |= {"examples": experiment.clients.sizes, "held_out": held.sizes}
    columns |= {
        **{"asked": book.asked, "answered": book.answered},
        **{"bytes_up": book.up, "bytes_down": book.down},
        **found,
    }
    each = zip(*columns.values(), strict=True)
    table = [dict(zip(columns, row, strict=True)) for row in each]
    files.write_rows(rows.place(folder, experiment.private) / FILE, table)
    return summary
