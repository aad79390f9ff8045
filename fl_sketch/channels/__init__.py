"""Channels: how the updates of many clients become an estimate of their mean."""

from fl_sketch.channels.basic import clipped as clipped
from fl_sketch.channels.basic import compressed as compressed
from fl_sketch.channels.basic import exact as exact
from fl_sketch.channels.basic import halves as halves
from fl_sketch.channels.basic import sketched as sketched
from fl_sketch.channels.heavy_hitters import columns as columns
from fl_sketch.channels.heavy_hitters import heaprix as heaprix
from fl_sketch.channels.heavy_hitters import heavy_values as heavy_values
from fl_sketch.channels.memory import difference as difference
from fl_sketch.channels.memory import error_feedback as error_feedback
from fl_sketch.channels.memory import marina as marina
