"""What the theorems promise: step sizes, rounds, errors and bits, before a run.

Every function takes the constants of the problem and returns what the paper's proof
gives for them, no more: outside a theorem's conditions it raises `Unreachable`, and
where a print has lost a factor of its proof the docstring says which. A theorem whose
assumptions do not hold for a model says nothing about it, and most constants of a deep
network are not known. Where a paper states only an order, O(...), the constant is set
to one here and the docstring says so. Bits are counted for messages of 32-bit floats,
up from all clients. `launch.theorems` measures each beside its bound.

>>> plan = one_step_strongly_convex(
...     target=0.01, smoothness=1.0, convexity=0.1, start=2.0,
...     alpha=alpha("count_sketch", 1000, 100), clients=10, b=100)
>>> round(plan.step, 6), plan.rounds, plan.bits
(0.032258, 1640, 52480000)
"""

from fl_sketch.theory.bound import Bound as Bound
from fl_sketch.theory.bound import Unreachable as Unreachable
from fl_sketch.theory.das import clipped as clipped
from fl_sketch.theory.das import clipped_error as clipped_error
from fl_sketch.theory.fedsketch import fedsketch as fedsketch
from fl_sketch.theory.one_step import one_step_convex as one_step_convex
from fl_sketch.theory.one_step import one_step_convex_error as one_step_convex_error
from fl_sketch.theory.one_step import one_step_largest as one_step_largest
from fl_sketch.theory.one_step import one_step_nonconvex as one_step_nonconvex
from fl_sketch.theory.one_step import (
    one_step_nonconvex_error as one_step_nonconvex_error,
)
from fl_sketch.theory.one_step import (
    one_step_strongly_convex as one_step_strongly_convex,
)
from fl_sketch.theory.one_step import (
    one_step_strongly_convex_error as one_step_strongly_convex_error,
)
from fl_sketch.theory.safl import Adaptive as Adaptive
from fl_sketch.theory.safl import Sizes as Sizes
from fl_sketch.theory.safl import adaptive as adaptive
from fl_sketch.theory.safl import adaptive_early_error as adaptive_early_error
from fl_sketch.theory.safl import adaptive_error as adaptive_error
from fl_sketch.theory.safl import adaptive_long_run_error as adaptive_long_run_error
from fl_sketch.theory.safl_confined import Confined as Confined
from fl_sketch.theory.safl_confined import Unassuming as Unassuming
from fl_sketch.theory.safl_confined import adaptive_confined as adaptive_confined
from fl_sketch.theory.safl_confined import (
    adaptive_confined_largest as adaptive_confined_largest,
)
from fl_sketch.theory.safl_decaying import (
    adaptive_decaying_error as adaptive_decaying_error,
)
from fl_sketch.theory.safl_decaying import (
    adaptive_decaying_step as adaptive_decaying_step,
)
from fl_sketch.theory.song import alpha as alpha
from fl_sketch.theory.song import convex as convex
from fl_sketch.theory.song import convex_error as convex_error
from fl_sketch.theory.song import largest_step as largest_step
from fl_sketch.theory.song import nonconvex as nonconvex
from fl_sketch.theory.song import nonconvex_error as nonconvex_error
from fl_sketch.theory.song import strongly_convex as strongly_convex
from fl_sketch.theory.song import strongly_convex_error as strongly_convex_error
from fl_sketch.theory.tails import tail as tail
