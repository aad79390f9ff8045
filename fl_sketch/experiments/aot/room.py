"""How many clients fit on the devices at a time, and what helps where none does."""

from ml_collections import ConfigDict

from fl_sketch.config import build
from fl_sketch.experiments.aot.placing import Placed, lower, place
from fl_sketch.experiments.aot.topology import GIB
from fl_sketch.run.setup import Setup


def most_clients(setup: Setup, placed: Placed) -> int:
    """Returns the most clients that fit on a row of devices at a time; 0: not one.

    Their number is doubled until they do not fit, or all clients of a round are there,
    and what is between is halved: a compilation for each.

    Args:
      placed: its round for some number of clients.
    """
    mesh, start = placed.lowered.mesh, placed.lowered.chunk
    all_of = -(-placed.lowered.places // mesh.shape["clients"])

    def fits(chunk: int) -> bool:
        if chunk == start:
            return placed.fits
        return place(lower(setup.with_chunk(chunk))).fits

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
    msg = (
        f"config.compute: Expected a round of at most {placed.room / GIB:.4g} GiB a "
        f"chip, got {taken / GIB:.4g} GiB: {_what_helps(config, placed)}."
    )
    raise ValueError(msg)


def _what_helps(config: ConfigDict, placed: Placed) -> str:
    """Returns the key by which a round that does not fit takes less, if there is one.

    Clients of fewer examples, or fewer of them at a time, make temporaries smaller and
    nothing else, which is no help where state and data alone are too much.
    """
    chunk, batch = placed.lowered.chunk, config.client.batch
    beside = placed.lowered.given < placed.room
    if beside and chunk > 1:
        return f"compute.chunk={chunk // 2} takes less"
    wider = _wider(config, placed.lowered.mesh.size)
    if wider:
        return f"compute.model_devices={wider} takes less"
    if beside and batch > 1:
        return f"client.batch={batch // 2} takes less"
    given = f"{placed.lowered.given / GIB:.4g} GiB of it are state and data"
    return f"{given}; a smaller model or more chips take less"


def _wider(config: ConfigDict, devices: int) -> int:
    """Returns the next larger number of devices that may hold a model; 0: none may."""
    model = config.compute.model_devices
    larger = [n for n in range(model + 1, devices + 1) if devices % n == 0]
    if not larger:
        return 0
    other = config.copy_and_resolve_references()
    other.compute.model_devices = larger[0]
    try:
        build.require_trees(other)
    except ValueError:  # its algorithm sketches vectors, or it has no server
        return 0
    return larger[0]
