"""What is behind each folder of results: a paper's claim, and the commands.

In a command, WORKDIR is the folder that was given and DATA that of the raw data sets.
"""

import os
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

from fl_sketch import files


class Reproduction(NamedTuple):
    """One folder of results.

    Attributes:
      claim: the paper, and where in it.
      commands: what follows `python -m`.
      minutes: on two cores, about.
    """

    claim: str
    commands: tuple[str, ...]
    minutes: int


def _compare(config: str) -> str:
    return f"launch.compare --config=configs/{config} --workdir=WORKDIR --data_dir=DATA"


def _safl(claim: str) -> str:
    return (
        f"launch.train --config=configs/safl_claims.py:cifar10,{claim} "
        "--config.checkpoint_every=100 --config.checkpoint_keep=0 --data_dir=DATA"
    )


def _spectrum(model: str) -> str:
    return (
        f"launch.spectrum --workdir=WORKDIR/{model} --data_dir=DATA --probes=2 "
        "--steps=40"
    )


REPRODUCTIONS = {
    "song_trade": Reproduction(
        "Song et al., Theorem 5.1 and Corollary 5.2: bits do not grow as b shrinks",
        (
            "launch.trade --operator=count_sketch --operator=srht --operator=gaussian "
            "--seeds=5 --out=WORKDIR/trade.csv",
        ),
        1,
    ),
    "safl_cifar10": Reproduction(
        "Chen et al., Figures 1 and 6: SAFL on images, by sketch size and server",
        (
            _compare("safl_claims.py:cifar10"),
            "launch.train --config=configs/safl_claims.py:cifar10,100x --data_dir=DATA "
            "--config.rounds=1600 --config.server.rate=0.03 --workdir=WORKDIR/long",
        ),
        180,
    ),
    "safl_sst2": Reproduction(
        "Chen et al., Figures 3 and 6: SAFL on sentences, by sketch size and server",
        (_compare("safl_claims.py:sst2"),),
        25,
    ),
    "speed": Reproduction(
        "What a sketch and a round cost, against a copy and the same loop by hand",
        (
            "launch.benchmark --suite=sketch --out=WORKDIR/sketch_cpu.jsonl",
            "launch.benchmark --suite=engine --out=WORKDIR/engine_cpu.jsonl",
        ),
        60,
    ),
    "hessian": Reproduction(
        "Chen et al., Figure 5: a spectrum with most eigenvalues near zero",
        (
            f"{_safl('fedadam')} --workdir=WORKDIR/resnet",
            f"{_spectrum('resnet')} --examples=100",
            f"{_safl('100x')} --config.model.name=vit --config.model.size=small "
            "--workdir=WORKDIR/vit",
            f"{_spectrum('vit')} --examples=200",
        ),
        25,
    ),
    "das_quadratics": Reproduction(
        "Das et al., Figures 1 to 3: normalisation ahead of clipping on quadratics",
        ("launch.quadratics --workdir=WORKDIR",),
        2,
    ),
    "das_table1": Reproduction(
        "Das et al., Table 1(a): normalisation ahead of clipping on Fashion-MNIST",
        (_compare("compare_das.py:fashion_mnist,100"),),
        30,
    ),
}


def run(one: Reproduction, folder: str | os.PathLike, data: str) -> int:
    """Runs the commands up to the first that fails; returns its exit code, or 0."""
    files.writable_folder(folder)
    places = {"WORKDIR": str(folder), "DATA": data}
    for line in one.commands:
        words = [
            re.sub("WORKDIR|DATA", lambda found: places[found[0]], word)
            for word in shlex.split(line)
        ]
        print("python -m", shlex.join(words), flush=True)
        if failed := subprocess.run([sys.executable, "-m", *words]).returncode:
            return failed
    return 0
