"""The computations of a compiled program, and how often each is played in a call.

A program's text has every loop's body once. What is counted in it, collectives or the
compiler's estimate of time, counts as often as the loop turns.
"""

import collections
import re
from collections.abc import Iterator

HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
CALLED = re.compile(r"(body|condition|calls|to_apply)=%?([\w.-]+)")
BRANCHES = re.compile(
    r"(?:branch_computations=\{|true_computation=|false_computation=)"
)
LIMIT = re.compile(r"= [su]\d+\[\]\S* constant\((\d+)\)")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def read(text: str) -> Iterator[tuple[list[str], int]]:
    """Yields the lines of each computation, and how often it is played in one call.

    A loop whose number of turns does not stand in its condition counts as one turn.

    Args:
      text: the program, as HLO prints it.
    """
    bodies, entry = _computations(text)
    times = _times(bodies, entry)
    for name, lines in bodies.items():
        if times[name]:
            yield lines, times[name]


def cycles(text: str) -> int:
    """Returns the cycles that the compiler expects one call to take on a chip.

    It is TPU's compiler's own guess of every operation, by which it chooses between
    forms: nothing was timed. What it does not guess, collectives among it, is missing.

    Args:
      text: the program, as HLO prints it.
    """
    return sum(
        times * sum(int(found) for line in lines for found in CYCLES.findall(line))
        for lines, times in read(text)
    )


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Returns the lines of each computation by its name, and the name of the first."""
    bodies: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        head = HEAD.match(line)
        if head:
            lines = bodies.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line.startswith(" "):
            lines.append(line.strip())
    return bodies, entry


def _times(bodies: dict[str, list[str]], entry: str) -> collections.Counter[str]:
    """Returns how often each computation is played in one call of the program."""
    times: collections.Counter[str] = collections.Counter()

    def visit(name: str, often: int):
        times[name] += often
        for line in bodies.get(name, ()):
            called = dict(CALLED.findall(line))
            turns = _turns(bodies.get(called.get("condition", ""), ()))
            for how, other in called.items():
                visit(other, often * (turns if how == "body" else 1))
            if BRANCHES.search(line):
                after = BRANCHES.split(line, maxsplit=1)[1]
                for other in re.findall(r"%([\w.-]+)", after):
                    if other in bodies:
                        visit(other, often)

    visit(entry, 1)
    return times


def _turns(condition: list[str] | tuple) -> int:
    """Returns how often a loop with this condition turns, where it says it; else 1."""
    limits = [int(found[1]) for line in condition if (found := LIMIT.search(line))]
    below = any("direction=LT" in line for line in condition)
    return limits[0] if below and len(limits) == 1 else 1
