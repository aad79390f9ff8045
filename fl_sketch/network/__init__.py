"""Secure sums: masked messages between clients, and one sum for the server.

The protocol is that of Bonawitz et al. (2017, "Practical Secure Aggregation for
Privacy-Preserving Machine Learning"), and for large cohorts that of Bell et al. (2020,
"Secure Single-Server Aggregation with (Poly)Logarithmic Overhead"). A `Client` and a
`Server` take bytes and return bytes. How the bytes travel is up to the caller.
`docs/secure_sum.md` says who learns what.

>>> import numpy as np
>>> from fl_sketch import network
>>> messages = {4: np.array([250, 1], np.uint32), 9: np.array([7, 2], np.uint32)}
>>> network.clear(length=2, bits=8).sum(messages, round=0).total
array([1, 3], dtype=uint32)
"""

from fl_sketch.network.identities import Identity as Identity
from fl_sketch.network.secure_client import Client as Client
from fl_sketch.network.secure_sum import Server as Server
from fl_sketch.network.sums import SecureSum as SecureSum
from fl_sketch.network.sums import Summed as Summed
from fl_sketch.network.sums import clear as clear
from fl_sketch.network.sums import masked as masked
from fl_sketch.network.terms import Terms as Terms
from fl_sketch.network.terms import terms_of as terms_of
