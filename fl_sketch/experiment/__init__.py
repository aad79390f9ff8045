"""Experiments: from a config to a run, its numbers and its files."""

from fl_sketch.experiment.build import Experiment as Experiment
from fl_sketch.experiment.build import build as build
from fl_sketch.experiment.loop import train as train
