"""A run: from a config to programs, rounds, numbers and files."""

from fl_sketch.run.build import Experiment as Experiment
from fl_sketch.run.build import build as build
from fl_sketch.run.loop import NotFinite as NotFinite
from fl_sketch.run.loop import Stopped as Stopped
from fl_sketch.run.loop import begin as begin
from fl_sketch.run.loop import train as train
from fl_sketch.run.program import prepare as prepare
from fl_sketch.run.run import run as run
from fl_sketch.workdir.weights import load_params as load_params
