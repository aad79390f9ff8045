"""Many runs: grids of configs, comparisons of methods, and their tables."""

from fl_sketch.sweep.comparison import side_by_side as side_by_side
from fl_sketch.sweep.sweep import sweep as sweep
