"""What the process imports of which commands are copies: see `tests/launching.py`."""

import warnings

import matplotlib.pyplot  # noqa: F401

import conftest  # noqa: F401 - jax keeps its programs where the tests do
from configs import default  # noqa: F401
from fl_sketch.audit import attack, config_audit, run_spectrum  # noqa: F401
from fl_sketch.run import plan, prepare  # noqa: F401
from fl_sketch.sweep import comparison, plots  # noqa: F401
from fl_sketch.workdir import release  # noqa: F401
from launch import command  # noqa: F401

# There are no threads yet that a fork could stop in the middle of something.
warnings.filterwarnings("ignore", "os.fork")
