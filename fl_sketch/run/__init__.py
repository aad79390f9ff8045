"""A run: from a config to programs, rounds, metrics and files."""

from fl_sketch.engine.first_row import StandsStill as StandsStill
from fl_sketch.engine.loop import NotFinite as NotFinite
from fl_sketch.engine.loop import Stopped as Stopped
from fl_sketch.run.generation import generate as generate
from fl_sketch.run.prediction import predict as predict
from fl_sketch.run.run import run as run
from fl_sketch.run.setup import from_config as from_config
from fl_sketch.run.setup import prepare as prepare
from fl_sketch.run.simulate import secret_roots as secret_roots
from fl_sketch.run.simulate import simulate as simulate
from fl_sketch.run.trained import Trained as Trained
from fl_sketch.run.trained import load_trained as load_trained
from fl_sketch.workdir.weights import load_params as load_params
