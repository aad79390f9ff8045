"""The engine: runs an algorithm for a cohort of clients, as one jitted program."""

from fl_sketch.engine.cohort import Cohort as Cohort
from fl_sketch.engine.cohort import everyone as everyone
from fl_sketch.engine.cohort import fixed_size as fixed_size
from fl_sketch.engine.cohort import poisson as poisson
from fl_sketch.engine.cohort import weighted as weighted
from fl_sketch.engine.cohort import with_dropout as with_dropout
from fl_sketch.engine.cohort import with_replacement as with_replacement
from fl_sketch.engine.mesh import AXIS as AXIS
from fl_sketch.engine.mesh import compiler_options as compiler_options
from fl_sketch.engine.mesh import cores as cores
from fl_sketch.engine.mesh import default_chunk as default_chunk
from fl_sketch.engine.mesh import mesh_over as mesh_over
from fl_sketch.engine.plan import plan_of as plan_of
from fl_sketch.engine.round import Report as Report
from fl_sketch.engine.round import SimulatorOnly as SimulatorOnly
from fl_sketch.engine.round import State as State
from fl_sketch.engine.round import initial_server as initial_server
from fl_sketch.engine.round import initial_state as initial_state
from fl_sketch.engine.round import make_round as make_round
from fl_sketch.engine.rounds import run_rounds as run_rounds
from fl_sketch.engine.rounds import with_everyone as with_everyone
from fl_sketch.engine.simulate import Run as Run
from fl_sketch.engine.simulate import Standing as Standing
from fl_sketch.engine.simulate import secret_roots as secret_roots
from fl_sketch.engine.simulate import simulate as simulate
