"""Layers that are fast in federated learning's loops, for any model.

XLA converts convolutions to the order of its kernels only at the start of a program for
CPUs, and batches those of several clients badly. The forms here do not suffer from
either. `form` puts them into any function, whatever library its model is from.
"""

from fl_sketch.fast.any_function import as_written as as_written
from fl_sketch.fast.any_function import form as form
from fl_sketch.fast.fixed import with_fixed as with_fixed
