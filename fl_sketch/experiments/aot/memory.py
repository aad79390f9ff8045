"""How many clients fit on the devices at a time, and what helps where none does."""

import bisect

from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config import build
from fl_sketch.experiments.aot.placing import Placed, lower, place
from fl_sketch.experiments.aot.topology import GIB
from fl_sketch.run.setup import Setup


def most_clients(setup: Setup, placed: Placed) -> int:
    """Returns the most clients that fit on a row of devices at a time; 0: not one.

    It is searched by halves; each trial is a compilation.
    """
    known, lowered = {placed.lowered.chunk: placed.fits}, placed.lowered

    def too_many(chunk: int) -> bool:
        if chunk not in known:
            known[chunk] = place(lower(setup.changed("compute.chunk", chunk))).fits
        return not known[chunk]

    everyone = -(-lowered.places // engine.rows(lowered.mesh))
    chunks = range(1, everyone + 1)
    if not too_many(everyone):
        return everyone
    return bisect.bisect_left(chunks, True, key=too_many)


def require_fit(config: ConfigDict, placed: Placed) -> None:
    """Raises a ValueError if a device lacks memory for a round, with a key that helps.

    Fewer clients at a time, or fewer examples of each, make temporaries smaller and
    nothing else. That is no help where state and data alone are too much.
    """
    if placed.fits:
        return
    lowered, batch = placed.lowered, config.client.batch
    inputs, chunk = lowered.inputs, lowered.chunk
    wider = _more_model_devices(config, lowered.mesh.size)
    if inputs < placed.room and chunk > 1:
        advice = f"compute.chunk={chunk // 2} needs less"
    elif wider:
        advice = f"compute.model_devices={wider} needs less"
    elif inputs < placed.room and batch > 1:
        advice = f"client.batch={batch // 2} needs less"
    else:
        advice = f"{inputs / GIB:.4g} GiB of it are state and data; a smaller model or "
        advice += "more chips need less"
    needed = placed.arguments + placed.temporaries
    msg = (
        f"config.compute: Expected a round of at most {placed.room / GIB:.4g} GiB "
        f"per chip, got {needed / GIB:.4g} GiB: {advice}."
    )
    raise ValueError(msg)


def _more_model_devices(config: ConfigDict, devices: int) -> int:
    """Returns the next larger number of devices that may hold a model; 0: none may."""
    model = config.compute.model_devices
    divisors = (n for n in range(model + 1, devices + 1) if devices % n == 0)
    larger = next(divisors, 0)
    if not larger:
        return 0
    wider = config.copy_and_resolve_references()
    wider.compute.model_devices = larger
    try:
        build.require_trees(wider)
    except ValueError:  # its algorithm sketches vectors, or it has no server
        return 0
    return larger
