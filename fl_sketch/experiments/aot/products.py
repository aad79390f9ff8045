"""In which types a compiled program multiplies, read off its text."""

import collections
import re

PRODUCT = re.compile(r" (?:convolution|dot)\(([^)]*)\)")
DEFINED = re.compile(r"%?([\w.-]+) = (\w+)\[")


def types(text: str) -> collections.Counter[tuple[str, str]]:
    r"""Returns how many products there are of each pair of types, sorted.

    A product in a loop counts once. Convolutions are products too, and on TPUs products
    of matrices are convolutions.

    >>> types("%a = bf16[2,3] add(%x)\n%b = f32[3] add(%y)\n%c = f32[2] dot(%a, %b)")
    Counter({('bf16', 'f32'): 1})

    Args:
      text: the program, as HLO prints it.
    """
    known, found = dict(DEFINED.findall(text)), collections.Counter()
    for operands in PRODUCT.findall(text):
        names = [one.split()[-1].lstrip("%") for one in operands.split(",")]
        left, right = sorted(known.get(name, "?") for name in names[:2])
        found[left, right] += 1
    return found


def said(text: str) -> str:
    """Returns in words in which types a program multiplies.

    Args:
      text: the program.
    """
    found = sorted(types(text).items())
    return ", ".join(f"{n} of {a} by {b}" for (a, b), n in found) or "none"
