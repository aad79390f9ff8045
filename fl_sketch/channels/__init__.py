"""Channels: how the updates of many clients become an estimate of their mean."""

from fl_sketch.channels.clipped import clipped as clipped
from fl_sketch.channels.marina import marina as marina
from fl_sketch.channels.memory import difference as difference
from fl_sketch.channels.memory import error_feedback as error_feedback
from fl_sketch.channels.single import compressed as compressed
from fl_sketch.channels.single import exact as exact
from fl_sketch.channels.single import sketched as sketched
from fl_sketch.channels.two_pass import columns as columns
from fl_sketch.channels.two_pass import heaprix as heaprix
from fl_sketch.channels.two_pass import heavy_values as heavy_values
