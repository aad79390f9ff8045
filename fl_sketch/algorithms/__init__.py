"""Algorithms: one file a method, each a short composition of three parts.

They take a loss and return an `Algorithm` for `simulate`. These arguments are
the same everywhere:

- loss: the loss of one batch, `(params, batch)` or `(params, batch, key) -> scalar`;
- client_rate: the step size eta of the local steps;
- client_optimizer: the clients' optimizer, a function of that rate, SGD by default;
- server_rate: the server's rate gamma, or a schedule of it;
- server: the server's optimizer, any of optax;
- sketch: the operator R; its key is fresh in every round.

Parts may be exchanged:

>>> from fl_sketch import algorithms, channels
>>> from fl_sketch.sketch import compressors
>>> loss = lambda params, batch: ((batch @ params) ** 2).mean()
>>> known = algorithms.fedavg(loss, client_rate=0.1)
>>> own = known._replace(uplink=channels.compressed(compressors.qsgd(7)))
>>> own.local is known.local  # every other part is still FedAvg's
True
"""

from fl_sketch.algorithms.cd_adam import cd_adam as cd_adam
from fl_sketch.algorithms.cocktail_sgd import cocktail_sgd as cocktail_sgd
from fl_sketch.algorithms.dp_fedavg import dp_fedavg as dp_fedavg
from fl_sketch.algorithms.dp_fedavg import dp_normfedavg as dp_normfedavg
from fl_sketch.algorithms.ef21 import ef21 as ef21
from fl_sketch.algorithms.fedavg import fedavg as fedavg
from fl_sketch.algorithms.fedcams import fedcams as fedcams
from fl_sketch.algorithms.fedgate import fedcomgate as fedcomgate
from fl_sketch.algorithms.fedgate import fedgate as fedgate
from fl_sketch.algorithms.fedopt import fedopt as fedopt
from fl_sketch.algorithms.fedsketch import fedsketch as fedsketch
from fl_sketch.algorithms.fedsketch import fedsketchgate as fedsketchgate
from fl_sketch.algorithms.fetchsgd import fetchsgd as fetchsgd
from fl_sketch.algorithms.iterative_sketching import (
    iterative_sketching as iterative_sketching,
)
from fl_sketch.algorithms.marina import marina as marina
from fl_sketch.algorithms.onebit_adam import onebit_adam as onebit_adam
from fl_sketch.algorithms.private_sketching import (
    private_sketching as private_sketching,
)
from fl_sketch.algorithms.qsgd import qsgd as qsgd
from fl_sketch.algorithms.safl import safl as safl
from fl_sketch.algorithms.scaffold import scaffold as scaffold
from fl_sketch.algorithms.sign_sgd import ef_sign_sgd as ef_sign_sgd
from fl_sketch.algorithms.sign_sgd import sign_sgd as sign_sgd
from fl_sketch.algorithms.sketched_sgd import sketched_sgd as sketched_sgd
from fl_sketch.algorithms.with_statistics import with_statistics as with_statistics
