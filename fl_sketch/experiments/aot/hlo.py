"""What a compiled program sends, multiplies and takes, read off its text, HLO.

The text has every loop's body once. Collectives and cycles are counted as often as the
loop turns; a loop whose number of turns is not in its condition counts as one turn.
"""

import collections
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
OPERATION = re.compile(rf"^(?:ROOT )?%?[\w.-]+ = (.*?) ({'|'.join(KINDS)})(-start)?\(")
ARRAY = re.compile(r"\b(pred|bf16|f16|f32|f64|c64|[su]\d+|f8\w+)\[([\d,]*)\]")
PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}]*\})\}")
LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
COUNTED = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
PRODUCT = re.compile(r" (?:convolution|dot)\(([^)]*)\)")
DEFINED = re.compile(r"%?([\w.-]+) = (\w+)\[")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
CALLED = re.compile(r"(body|condition|calls|to_apply)=%?([\w.-]+)")
BRANCHES = re.compile(
    r"(?:branch_computations=\{|true_computation=|false_computation=)"
)
LIMIT = re.compile(r"= [su]\d+\[\]\S* constant\((\d+)\)")


class Array(NamedTuple):
    """An array that is sent, with its type as HLO names it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """Its bytes."""
        bits = 8 if self.dtype == "pred" else int(re.findall(r"\d+", self.dtype)[0])
        return self.size * bits / 8


class Collective(NamedTuple):
    """An operation in which devices communicate.

    Attributes:
      kind: one of `KINDS`.
      arrays: its results, on each device.
      group: the number of devices that communicate with each other.
      times: how often it runs in a call of the program.
    """

    kind: str
    arrays: tuple[Array, ...]
    group: int
    times: int = 1

    @property
    def sent(self) -> float:
        """The bytes that each device sends in a call, by a ring of the group.

        A sum goes around twice, all else once. Of a scattered sum a device keeps one
        part, and it passes on parts of all the others.
        """
        others = self.group - 1
        share = {
            "all-reduce": 2 * others / self.group,
            "all-gather": others / self.group,
            "all-to-all": others / self.group,
            "reduce-scatter": others,
        }.get(self.kind, 1.0)
        return share * sum(array.nbytes for array in self.arrays) * self.times

    @property
    def numbers(self) -> int:
        """The size of its largest array."""
        return max((array.size for array in self.arrays), default=0)


def collectives(text: str, devices: int) -> list[Collective]:
    """Returns the collectives of a compiled program for so many devices."""
    return [
        collective._replace(times=times)
        for lines, times in _computations(text)
        for collective in _within(lines, devices)
    ]


def cycles(text: str) -> int:
    """Returns the cycles that TPUs' compiler expects one call to take on a chip.

    It is the compiler's own estimate of every operation, by which it chooses between
    forms: nothing was timed. Operations without an estimate, such as collectives, are
    missing.
    """
    return sum(
        times * sum(int(count) for line in lines for count in CYCLES.findall(line))
        for lines, times in _computations(text)
    )


def products(text: str) -> collections.Counter[tuple[str, str]]:
    r"""Returns how many products there are of each pair of types, sorted.

    A product in a loop counts once. Convolutions are products too, and on TPUs products
    of matrices are convolutions.

    >>> products("%a = bf16[2] add(%x)\n%b = f32[3] add(%y)\n%c = f32[2] dot(%a, %b)")
    Counter({('bf16', 'f32'): 1})
    """
    types, pairs = dict(DEFINED.findall(text)), collections.Counter()
    for operands in PRODUCT.findall(text):
        names = [operand.split()[-1].lstrip("%") for operand in operands.split(",")]
        left, right = sorted(types.get(name, "?") for name in names[:2])
        pairs[left, right] += 1
    return pairs


def _within(lines: Sequence[str], devices: int) -> Iterator[Collective]:
    """Yields the collectives of a computation."""
    for line in lines:
        match = OPERATION.match(line)
        if not match:
            continue
        results, kind, started = match.groups()
        arrays = [
            Array(dtype, tuple(int(size) for size in shape.split(",") if size))
            for dtype, shape in ARRAY.findall(results)
        ]
        if started and kind == "all-gather":  # its inputs come first
            arrays = arrays[len(arrays) // 2 :]
        elif started and kind == "collective-permute":
            arrays = arrays[1:2]
        yield Collective(kind, tuple(arrays), _group(line, devices))


def _group(line: str, devices: int) -> int:
    """Returns how many of the devices communicate with each other."""
    pairs, listed, counted = (p.search(line) for p in (PAIRS, LISTED, COUNTED))
    if pairs:
        return _longest_ring(dict(re.findall(r"\{(\d+),(\d+)\}", pairs[1])))
    if counted:
        return int(counted[2])
    if listed and listed[1]:
        return len(listed[1].split(","))
    return devices


def _longest_ring(targets: dict[str, str]) -> int:
    """Returns the size of the largest ring of devices, each with its target."""
    longest = 0
    for first in targets:
        ring = [first]
        while (after := targets.get(ring[-1])) and after not in ring:
            ring.append(after)
        longest = max(longest, len(ring))
    return longest


def _computations(text: str) -> Iterator[tuple[list[str], int]]:
    """Yields the lines of each computation, and how often it runs in one call."""
    bodies: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        head = HEAD.match(line)
        if head:
            lines = bodies.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line.startswith(" "):
            lines.append(line.strip())
    times = _times(bodies, entry)
    yield from ((bodies[name], times[name]) for name in bodies if times[name])


def _times(bodies: dict[str, list[str]], entry: str) -> collections.Counter[str]:
    """Returns how often each computation runs in one call of the program."""
    times: collections.Counter[str] = collections.Counter()

    def visit(name: str, count: int):
        times[name] += count
        for line in bodies.get(name, ()):
            called = dict(CALLED.findall(line))
            turns = _turns(bodies.get(called.get("condition", ""), ()))
            for role, callee in called.items():
                visit(callee, count * (turns if role == "body" else 1))
            _, *branches = BRANCHES.split(line, maxsplit=1)
            for callee in re.findall(r"%([\w.-]+)", "".join(branches)):
                if callee in bodies:
                    visit(callee, count)

    visit(entry, 1)
    return times


def _turns(condition: Sequence[str]) -> int:
    """Returns how often a loop with this condition turns; 1 if it is not known."""
    limits = [int(limit[1]) for line in condition if (limit := LIMIT.search(line))]
    below = any("direction=LT" in line for line in condition)
    return limits[0] if below and len(limits) == 1 else 1
