"""Data: read real sets, deal them to clients, draw batches on the device.

>>> from fl_sketch.data import datasets, partition
>>> splits = datasets.load("digits")
>>> dealt = partition.dirichlet(splits.train.targets, 20, alpha=0.5, seed=0)
>>> dealt.clients, int(dealt.sizes.sum()) == len(splits.train.targets)
(20, True)
"""
