"""fl_sketch: federated learning in which clients send sketches of their updates.

Read in this order: `protocols` (the types), `sketch` (linear maps to a few
numbers and back), `compressors` (nonlinear messages with exact bits), `wire`
(the bytes) and `transforms` (the same parts as optax gradient transformations).
"""

__version__ = "0.1.0"
