"""What a compiled program sends from device to device, read off its text."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from fl_sketch.experiments.aot import computations

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64}
ARRAY = re.compile(r"\b(pred|bf16|f16|f32|f64|c64|[su]\d+|f8\w+)\[([\d,]*)\]")
PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}]*\})\}")
LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
COUNTED = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
OPERATION = re.compile(rf"^(?:ROOT )?%?[\w.-]+ = (.*?) ({'|'.join(KINDS)})(-start)?\(")


class Array(NamedTuple):
    """An array that is sent.

    Attributes:
      dtype: the type of its numbers, as HLO names it.
      shape: the shape.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of its numbers."""
        size = 1
        for axis in self.shape:
            size *= axis
        return size

    @property
    def nbytes(self) -> float:
        """The bytes of them."""
        bits = BITS.get(self.dtype) or int(re.findall(r"\d+", self.dtype)[0])
        return self.size * bits / 8


class Collective(NamedTuple):
    """An operation of a program in which devices talk to each other.

    Attributes:
      kind: one of `KINDS`.
      arrays: the arrays that come of it, on each device.
      group: the number of devices that talk with each other.
      times: the number of times that it is played in a round.
    """

    kind: str
    arrays: tuple[Array, ...]
    group: int
    times: int

    @property
    def nbytes(self) -> float:
        """The bytes of its arrays, once."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def sent(self) -> float:
        """The bytes that each device sends in a round, by a ring of the group.

        A sum goes around twice, all else once; of a scattered sum a device keeps one
        part, and handed on parts of all.
        """
        others = self.group - 1
        share = {
            "all-reduce": 2 * others / self.group,
            "all-gather": others / self.group,
            "all-to-all": others / self.group,
            "reduce-scatter": others,
        }.get(self.kind, 1.0)
        return share * self.nbytes * self.times

    @property
    def numbers(self) -> int:
        """The numbers of its longest array."""
        return max((array.size for array in self.arrays), default=0)


def read(text: str, devices: int) -> list[Collective]:
    """Returns the collectives of a compiled program, as HLO prints it.

    A loop whose number of turns does not stand in its condition counts as one turn.

    Args:
      text: the program.
      devices: the number of devices that it is for.
    """
    return [
        found._replace(times=times)
        for lines, times in computations.read(text)
        for found in _within(lines, devices)
    ]


def _within(lines: list[str], devices: int) -> Iterator[Collective]:
    """Yields the collectives of a computation, each as if it were played once."""
    for line in lines:
        found = OPERATION.match(line)
        if not found:
            continue
        arrays = [
            Array(dtype, tuple(int(n) for n in shape.split(",") if n))
            for dtype, shape in ARRAY.findall(found[1])
        ]
        if found[3] and found[2] == "all-gather":  # what goes in stands first
            arrays = arrays[len(arrays) // 2 :]
        elif found[3] and found[2] == "collective-permute":
            arrays = arrays[1:2]
        yield Collective(found[2], tuple(arrays), _group(line, devices), 1)


def _group(line: str, devices: int) -> int:
    """Returns how many devices talk with each other, of so many."""
    pairs, listed, counted = (p.search(line) for p in (PAIRS, LISTED, COUNTED))
    if pairs:
        return _ring(re.findall(r"\{(\d+),(\d+)\}", pairs[1]))
    if counted:
        return int(counted[2])
    if listed and listed[1]:
        return len(listed[1].split(","))
    return devices


def _ring(pairs: list[tuple[str, str]]) -> int:
    """Returns how many devices hand something on to each other, in the largest ring."""
    ahead, longest = dict(pairs), 0
    for first in ahead:
        seen = [first]
        while (after := ahead.get(seen[-1])) and after not in seen:
            seen.append(after)
        longest = max(longest, len(seen))
    return longest
