"""What papers prove of their methods: one file a paper, functions of numbers.

A `theorem_*` returns the right side of a bound, and raises a ValueError where a
condition on its arguments fails. A `rounds_*` or a corollary returns the step size and
the rounds with which that right side is at most a target. Arguments are the letters of
the paper, which the docstring of its file explains. docs/theory.md has what theorems
assume of losses, clients and sketches, and results/theory/details.md where functions
differ from the print.
"""

from fl_sketch.theory import das as das
from fl_sketch.theory import fedsketch as fedsketch
from fl_sketch.theory import safl as safl
from fl_sketch.theory import song as song
