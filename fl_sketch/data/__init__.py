"""Data: read real sets, split them among clients, draw batches on the device.

>>> from fl_sketch import data
>>> from fl_sketch.data import datasets
>>> splits = datasets.load("digits")
>>> partition = data.dirichlet(splits.train.targets, 20, alpha=0.5, seed=0)
>>> data.clients(splits.train, partition).population
20
"""

from fl_sketch.data.clients import Clients as Clients
from fl_sketch.data.clients import clients as clients
from fl_sketch.data.partition import Partition as Partition
from fl_sketch.data.partition import capped_dirichlet as capped_dirichlet
from fl_sketch.data.partition import classes_per_client as classes_per_client
from fl_sketch.data.partition import dirichlet as dirichlet
from fl_sketch.data.partition import iid as iid
from fl_sketch.data.partition import label_shards as label_shards
from fl_sketch.data.partition import mixtures as mixtures
from fl_sketch.data.partition import natural as natural
from fl_sketch.data.partition import power_law_sizes as power_law_sizes
