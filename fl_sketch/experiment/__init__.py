"""Experiments: from a config to a run, its numbers and its files."""

from fl_sketch.experiment.build import Experiment as Experiment
from fl_sketch.experiment.build import build as build
from fl_sketch.experiment.loop import NotFinite as NotFinite
from fl_sketch.experiment.loop import Stopped as Stopped
from fl_sketch.experiment.loop import begin as begin
from fl_sketch.experiment.loop import train as train
from fl_sketch.experiment.program import prepare as prepare
from fl_sketch.experiment.run import run as run
from fl_sketch.experiment.side_by_side import side_by_side as side_by_side
from fl_sketch.experiment.sweep import sweep as sweep
