"""Algorithms: one file a method, each a short composition of three parts."""

from fl_sketch.algorithms.fedavg import fedavg as fedavg
from fl_sketch.algorithms.fedopt import fedopt as fedopt
from fl_sketch.algorithms.iterative_sketching import (
    iterative_sketching as iterative_sketching,
)
from fl_sketch.algorithms.iterative_sketching import replay as replay
from fl_sketch.algorithms.safl import safl as safl
