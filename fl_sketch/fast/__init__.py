"""Layers that are fast in the loops of federated learning, for any model.

On CPUs, XLA converts convolutions to the order of its kernels only at the start of a
program, and it batches those of several clients badly. The forms here avoid both.
`form` applies them to any function, for models of any library.
"""

from fl_sketch.fast.any_function import as_written as as_written
from fl_sketch.fast.any_function import form as form
from fl_sketch.fast.fixed import with_fixed as with_fixed
