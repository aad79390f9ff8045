"""SAFL's Figure 3: SAFL and other compressed methods on SST-2 with a transformer.

Command: python -m launch.compare --config=configs/compare_sst2.py \
--workdir=/tmp/compare_sst2 --data_dir=DATA
Expect: a table like that of results/peers_sst2.

Clients take five local steps of 32, or one gradient of 160, and rates have grids of
their own. Everything else is as in configs/compare_cifar10.py.
"""

from configs import compare_cifar10


def get_comparison(which: str = "100"):
    """Returns the methods of SST-2; `which` is as in configs/compare_cifar10.py."""
    return compare_cifar10.of_task("sst2", which)
