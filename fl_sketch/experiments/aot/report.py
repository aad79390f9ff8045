"""The report on a compiled round: its memory, and what devices send each other."""

import collections
import re

from fl_sketch import engine
from fl_sketch.experiments.aot import hlo
from fl_sketch.experiments.aot.hlo import Collective
from fl_sketch.experiments.aot.placing import Lowered, Placed
from fl_sketch.experiments.aot.topology import GIB

Row = dict[str, str | int | float | bool]
# StableHLO's operations in which devices communicate, and calls of other code.
COMMUNICATION = re.compile(
    r'"?stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_\w+)'
)
CUSTOM = re.compile(r"stablehlo\.custom_call @([\w.]+)")
PLAIN = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "shape_assertion"}


def lines(placed: Placed) -> list[str]:
    """Returns the lines that `launch.compile` prints of a compiled round."""
    text = [
        *_head(placed.lowered),
        f"memory per chip: {_gib(placed.arguments)} arguments + "
        f"{_gib(placed.temporaries)} temporaries of {_gib(placed.room)}: "
        + ("it fits" if placed.fits else "it does not fit"),
    ]
    if placed.text:
        collectives = collectives_of(placed)
        sent = sum(collective.sent for collective in collectives)
        products = sorted(hlo.products(placed.text).items())
        listed = ", ".join(f"{n} of {a} by {b}" for (a, b), n in products) or "none"
        expected = hlo.cycles(placed.text) / 1e6
        text += [
            f"collectives: {len(collectives)}",
            *(f"  {line}" for line in described(collectives)),
            f"matrix products: {listed}",
            f"interconnect: a chip sends {_bytes(sent)} per round",
            f"estimate of the compiler: {expected:.4g} million cycles per round",
        ]
    return [*text, f"compiled in {placed.seconds:.1f} s"]


def lines_of_lowered(lowered: Lowered) -> list[str]:
    """Returns the lines on a round that was lowered and not compiled."""
    text = lowered.program.as_text()
    kinds = sorted(collections.Counter(COMMUNICATION.findall(text)).items())
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds)
    calls = ", ".join(sorted({*CUSTOM.findall(text)} - PLAIN))
    return [
        *_head(lowered),
        f"communication between devices: {counts or 'none'}",
        f"custom calls outside XLA: {calls or 'none'}",
        "memory and bytes are known only after compilation on such a machine",
    ]


def collectives_of(placed: Placed) -> list[Collective]:
    """Returns the collectives of a round, those that send most first."""
    collectives = hlo.collectives(placed.text, placed.lowered.mesh.size)
    return sorted(collectives, key=lambda collective: -collective.sent)


def described(collectives: list[Collective]) -> list[str]:
    """Returns a line for all collectives of one kind and size."""
    text = []
    for alike, count in collections.Counter(collectives).items():
        shapes = collections.Counter(
            f"{array.dtype}[{','.join(map(str, array.shape))}]"
            for array in alike.arrays
        )
        arrays = ", ".join(f"{n} {s}" if n > 1 else s for s, n in shapes.items())
        several = f"{count} x " if count > 1 else ""
        times = f", {alike.times} times" if alike.times > 1 else ""
        text.append(f"{several}{alike.kind} of {arrays} between {alike.group}{times}")
    return text


def row(placed: Placed, most: int | None = None) -> Row:
    """Returns a row of a table on a round; `most` is how many clients fit, if known.

    What a compiled program shows is blank where the round does not fit.
    """
    lowered, collectives = placed.lowered, collectives_of(placed)
    program: Row = {
        "collectives": len(collectives),
        "largest_numbers": max((part.numbers for part in collectives), default=0),
        "sent_bytes": round(sum(part.sent for part in collectives)),
        "expected_megacycles": round(hlo.cycles(placed.text) / 1e6, 3),
    }
    return {
        "d": lowered.d,
        "b": lowered.numbers,
        "devices": lowered.mesh.size,
        "model_devices": lowered.mesh.shape.get(engine.MODEL, 1),
        "cohort": lowered.places,
        "chunk": lowered.chunk,
        "most_clients": "" if most is None else most,
        "arguments_gib": round(placed.arguments / GIB, 4),
        "temporaries_gib": round(placed.temporaries / GIB, 4),
        "room_gib": placed.room / GIB,
        "fits": placed.fits,
        **(program if placed.text else dict.fromkeys(program, "")),
        "lower_seconds": round(lowered.seconds, 1),
        "compile_seconds": round(placed.seconds, 1),
    }


def _head(lowered: Lowered) -> list[str]:
    shape = " x ".join(f"{size} {name}" for name, size in lowered.mesh.shape.items())
    return [
        f"devices: {shape}; {lowered.places} clients per round, {lowered.chunk} at a "
        "time per row" + (" of devices" if lowered.mesh.size > 1 else ""),
        f"parameters: {lowered.d:,}; numbers per message: {lowered.numbers:,}",
        f"lowered in {lowered.seconds:.1f} s",
    ]


def _gib(size: float) -> str:
    return f"{size / GIB:.3f} GiB"


def _bytes(size: float) -> str:
    """Returns a size in words; powers of ten, as networks count.

    >>> _bytes(1_300_000)
    '1.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
