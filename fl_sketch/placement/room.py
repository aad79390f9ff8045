"""How many clients fit on the devices at a time, and what helps where none does."""

from ml_collections import ConfigDict

from fl_sketch.placement.placing import Placed, lower, place
from fl_sketch.placement.topology import GIB
from fl_sketch.run.problem import Problem


def most_clients(problem: Problem, placed: Placed) -> int:
    """Returns the most clients that fit on a row of devices at a time; 0: not one.

    Their number is doubled until they do not fit, or all clients of a round are there,
    and what is between is halved: a compilation for each.

    Args:
      problem: what is trained.
      placed: its round for some number of clients.
    """
    mesh, start = placed.lowered.mesh, placed.lowered.chunk
    all_of = -(-placed.lowered.places // mesh.shape["clients"])

    def fits(chunk: int) -> bool:
        if chunk == start:
            return placed.fits
        return place(lower(problem, mesh, chunk=chunk)).fits

    fitting, beyond = 0, all_of + 1
    trial = min(start, all_of)
    while fitting + 1 < beyond:
        if fits(trial):
            fitting = trial
        else:
            beyond = trial
        doubled = fitting * 2 if beyond > all_of else (fitting + beyond) // 2
        trial = min(max(doubled, 1), beyond - 1)
    return fitting


def require_fit(config: ConfigDict, placed: Placed) -> None:
    """Raises for a round that a device has no memory for, with the key that helps.

    Args:
      config: the config.
      placed: its round.

    Raises:
      ValueError: in one line.
    """
    if placed.fits:
        return
    taken = placed.arguments + placed.temporaries
    devices = placed.lowered.mesh.size
    model = config.compute.model_devices
    if placed.lowered.chunk > 1:
        key = f"compute.chunk={placed.lowered.chunk // 2}"
    elif model < devices:
        key = f"compute.model_devices={2 * model}"
    else:
        key = f"client.batch={max(1, config.client.batch // 2)}"
    msg = (
        f"config.compute: Expected a round of at most {placed.room / GIB:.4g} GiB a "
        f"chip, got {taken / GIB:.4g} GiB: {key} takes less."
    )
    raise ValueError(msg)
