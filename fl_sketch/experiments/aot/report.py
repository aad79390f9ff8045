"""What is said of a round that was placed: its memory, and what crosses."""

import collections
import re

from fl_sketch import engine
from fl_sketch.experiments.aot import collectives, computations, products
from fl_sketch.experiments.aot.collectives import Collective
from fl_sketch.experiments.aot.placing import Lowered, Placed
from fl_sketch.experiments.aot.topology import GIB

Row = dict[str, str | int | float | bool]
# StableHLO's operations in which devices talk, and calls of code that is not XLA's.
TALKING = re.compile(
    r'"?stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_\w+)'
)
CUSTOM = re.compile(r"stablehlo\.custom_call @([\w.]+)")
PLAIN = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "shape_assertion")


def lines(placed: Placed) -> list[str]:
    """Returns the lines that `launch.compile` prints of a `placed` round."""
    found = crossing(placed)
    sent = sum(one.sent for one in found)
    told = [
        *_head(placed.lowered),
        f"memory of a chip: {_gib(placed.arguments)} of arguments, "
        f"{_gib(placed.temporaries)} of temporaries, of {_gib(placed.room)}: "
        + ("it fits" if placed.fits else "it does not fit"),
    ]
    if placed.text:
        told += [f"collectives: {len(found)}", *(f"  {line}" for line in said(found))]
        told.append(f"products: {products.said(placed.text)}")
        told.append(f"over the interconnect: {_bytes(sent)} sent by a chip in a round")
        expected = computations.cycles(placed.text) / 1e6
        told.append(f"the compiler expects {expected:.4g} million cycles a round")
    return [*told, f"compiled in {placed.seconds:.1f} s"]


def lines_of_lowered(lowered: Lowered) -> list[str]:
    """Returns the lines on a round that was `lowered` and not compiled."""
    text = lowered.program.as_text()
    talking = collections.Counter(TALKING.findall(text))
    calls = sorted({*CUSTOM.findall(text)} - {*PLAIN})
    told = [f"{count} {kind}" for kind, count in sorted(talking.items())]
    return [
        *_head(lowered),
        "operations between devices: " + (", ".join(told) or "none"),
        "calls of other code than XLA's: " + (", ".join(calls) or "none"),
        "memory and bytes are known when it is compiled, on such a machine",
    ]


def crossing(placed: Placed) -> list[Collective]:
    """Returns the collectives of a `placed` round, the ones that send most first."""
    found = collectives.read(placed.text, placed.lowered.mesh.size)
    return sorted(found, key=lambda one: -one.sent)


def said(found: list[Collective]) -> list[str]:
    """Returns a line for all collectives of one kind and size.

    Args:
      found: the collectives.
    """
    alike = collections.Counter(
        (one.kind, one.arrays, one.group, one.times) for one in found
    )
    told = []
    for (kind, arrays, group, times), count in alike.items():
        shapes = collections.Counter(
            f"{one.dtype}[{','.join(map(str, one.shape))}]" for one in arrays
        )
        what = ", ".join(f"{n} {s}" if n > 1 else s for s, n in shapes.items())
        many = f"{count} x " if count > 1 else ""
        often = f", {times} times" if times > 1 else ""
        told.append(f"{many}{kind} of {what} between {group}{often}")
    return told


def row(placed: Placed, most: int | None = None) -> Row:
    """Returns a table's row on a round.

    Args:
      placed: the round.
      most: the most clients that fit at a time; None: nobody asked.
    """
    lowered = placed.lowered
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
        **_of_program(placed),
        "lower_seconds": round(lowered.seconds, 1),
        "compile_seconds": round(placed.seconds, 1),
    }


def _of_program(placed: Placed) -> Row:
    """Returns what only a compiled program says; empty: there is none."""
    found = crossing(placed)
    told: Row = {
        "collectives": len(found),
        "largest_numbers": max((one.numbers for one in found), default=0),
        "sent_bytes": round(sum(one.sent for one in found)),
        "expected_megacycles": round(computations.cycles(placed.text) / 1e6, 3),
    }
    return told if placed.text else dict.fromkeys(told, "")


def _head(lowered: Lowered) -> list[str]:
    shape = " x ".join(f"{size} {name}" for name, size in lowered.mesh.shape.items())
    return [
        f"devices: {shape}; {lowered.places} clients a round, {lowered.chunk} at a "
        "time on each row" + (" of them" if lowered.mesh.size > 1 else ""),
        f"parameters: {lowered.d:,}; numbers that a client sends: {lowered.numbers:,}",
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
