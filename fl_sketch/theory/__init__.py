"""The bounds of the theorems: step sizes, rounds, errors and bits, before a run.

A function takes the `Constants` of the problem and the run, and returns the `Bound` of
the paper's proof. Most take a target as well, and choose the step and the rounds that
reach it. Outside a theorem's conditions it raises `Unreachable`. If a printed statement
lacks a factor of its proof, the docstring names it. A theorem whose assumptions do not
hold for a model says nothing about it, and most constants of a deep network are not
known. Where a paper states only an order, O(...), the constant is set to one here and
the docstring says so. Bits are counted for messages of 32-bit floats, up from all
clients. `launch.theorems` measures what each theorem bounds.

>>> constants = Constants(
...     smoothness=1.0, convexity=0.1, start=2.0, clients=10,
...     operator="count_sketch", d=1000, b=100)
>>> bound = one_step_strongly_convex(constants, target=0.01)
>>> round(bound.step, 6), bound.rounds, bound.bits
(0.032258, 1640, 52480000)
"""

from fl_sketch.theory.assumptions import Assumption as Assumption
from fl_sketch.theory.bound import Bound as Bound
from fl_sketch.theory.bound import Constants as Constants
from fl_sketch.theory.bound import Unreachable as Unreachable
from fl_sketch.theory.das import clipped as clipped
from fl_sketch.theory.das import clipped_error as clipped_error
from fl_sketch.theory.das import clipped_minimum as clipped_minimum
from fl_sketch.theory.das import normalised as normalised
from fl_sketch.theory.das import normalised_error as normalised_error
from fl_sketch.theory.das import unclipped as unclipped
from fl_sketch.theory.fedsketch import fedavg_nonconvex as fedavg_nonconvex
from fl_sketch.theory.fedsketch import fedsketch as fedsketch
from fl_sketch.theory.fedsketch import fedsketch_convex as fedsketch_convex
from fl_sketch.theory.fedsketch import fedsketch_nonconvex as fedsketch_nonconvex
from fl_sketch.theory.fedsketch import fedsketch_pl as fedsketch_pl
from fl_sketch.theory.fedsketch import fedsketchgate as fedsketchgate
from fl_sketch.theory.fedsketch import omega as omega
from fl_sketch.theory.inversion import input_descent as input_descent
from fl_sketch.theory.inversion import unique_input as unique_input
from fl_sketch.theory.safl import adaptive as adaptive
from fl_sketch.theory.safl import adaptive_confined as adaptive_confined
from fl_sketch.theory.safl import adaptive_decaying as adaptive_decaying
from fl_sketch.theory.safl import adaptive_decaying_step as adaptive_decaying_step
from fl_sketch.theory.safl import adaptive_early as adaptive_early
from fl_sketch.theory.safl import adaptive_long_run as adaptive_long_run
from fl_sketch.theory.safl import tail as tail
from fl_sketch.theory.song import alpha as alpha
from fl_sketch.theory.song import convex as convex
from fl_sketch.theory.song import iterative_sketching as iterative_sketching
from fl_sketch.theory.song import nonconvex as nonconvex
from fl_sketch.theory.song import one_step_convex as one_step_convex
from fl_sketch.theory.song import one_step_nonconvex as one_step_nonconvex
from fl_sketch.theory.song import one_step_strongly_convex as one_step_strongly_convex
from fl_sketch.theory.song import strongly_convex as strongly_convex
