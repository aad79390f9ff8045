"""The same rounds in the engine, in plain jax, in PyTorch and in pfl, timed in turn.

python -m benchmarks.peers --only=W2 --python=PEERS/bin/python --out=rows.jsonl
python -m benchmarks.peers --only=W1 --peers=engine --other=PATH

Each peer is a program in its own process. All are warmed up one after the other; then
each runs a round in turn, so that a change of the machine's speed affects all equally.

  engine           a call of the engine's round
  other            the same with the fl_sketch of another checkout, at --other
  plain            the loop by hand in plain jax
  torch_processes  clients one after the other in two processes of one thread (CPUs)
  torch_compile    steps of all clients by torch.compile(vmap); on a GPU as CUDA graphs
  pfl              federated averaging of pfl

These forms of PyTorch were the fastest of seven in results/speed: on two cores
processes on W1, W2 and W4 and torch.compile on W3, on a GPU the graphs on W4. On W5 a
loop took 2 % less than processes, on W1 to W3 one graph of a whole round 16 to 45 %
less than a graph for each step.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import jax_rounds
from benchmarks.rounds import WORKLOADS, Workload

ROOT = pathlib.Path(__file__).parents[1]
TORCH = {"torch_processes": "processes", "torch_compile": "compile", "pfl": "pfl"}
PEERS = ("engine", "plain", *TORCH)
# How far apart the ways of two equal models in the first round may be. W1's five steps
# of 0.1 carry the last digits of float32 to the third one; GPUs multiply in TF32.
NEAR = {"cpu": 1e-2, "gpu": 5e-2}


class Peer:
    """A program that has been started and warmed up; `ends` ends it."""

    def __init__(self, words: Sequence[str], roots: Sequence[str], folder: str, ends):
        own = {
            "PYTHONPATH": os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")]),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # others share the GPU
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # a first round is a first one
        }
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | own,
            start_new_session=True,  # a group with what it starts, to be ended together
        )
        self._process: Any = ends.enter_context(process)
        ends.callback(os.killpg, process.pid, signal.SIGKILL)
        self.ready = self._line() == "READY"

    def ask(self, word: str) -> str:
        """Returns the answer to a word; empty: the program has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), f"{word}\n".encode())
        return self._line()

    def _line(self) -> str:
        return self._process.stdout.readline().strip()


def rows(
    name: str,
    work: Workload,
    peers: Sequence[str],
    *,
    rounds: int,
    python: str = sys.executable,
    other: str = "",
) -> Iterator[dict[str, Any]]:
    """Yields a row for each peer that lives to the end; `seconds` are of a round.

    Args:
      peers: some of `PEERS`, "other", or forms of `jax_rounds`.
      python: the interpreter of the peers in PyTorch.
      other: the path of another checkout.
    """
    alive: dict[str, Peer] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        weights = pathlib.Path(folder) / "weights.npz"
        np.savez(weights, **jax_rounds.initial_weights(work))
        for peer in peers:
            roots = [other, str(ROOT)] if peer == "other" else [str(ROOT)]
            form = TORCH.get(peer, "engine" if peer == "other" else peer)
            words = [sys.executable, "-m", "benchmarks.jax_rounds"]
            if peer in TORCH:
                words = [python, "-m", "benchmarks.torch_rounds"]
            words += [name, form, str(work.cohort), str(weights)]
            alive[peer] = Peer(words, roots, folder, ends)
        alive = {peer: one for peer, one in alive.items() if one.ready}
        samples: dict[str, list[float]] = {peer: [] for peer in alive}
        for number in range(rounds):
            turn = number % max(1, len(alive))
            for peer in [*alive][turn:] + [*alive][:turn]:
                samples[peer].append(float(alive[peer].ask("go") or "nan"))
        answers = {peer: one.ask("end") for peer, one in alive.items()}
    summaries = {peer: json.loads(text) for peer, text in answers.items() if text}
    for peer in peers:
        if peer not in summaries:
            print(f"{peer} is left out: it ended too early", file=sys.stderr)
    for peer, summary in summaries.items():
        first = next(iter(summaries))
        moved, unit = summary["moved"], summaries[first]["moved"]
        near = abs(moved - unit) <= NEAR[summary["device"][:3]] * unit
        pairs = zip(samples[peer], samples[first], strict=True)
        yield {
            "workload": name,
            "peer": peer,
            "cohort": work.cohort,
            "seconds": statistics.median(samples[peer]),
            # The median ratio to the first peer, each pair measured in one round.
            "ratio": statistics.median(a / b for a, b in pairs),
            "rounds": rounds,
            "model": "same" if near else "other",
            **summary,
        }


def main(peers: Sequence[str] = PEERS) -> None:
    """Times the workloads that the arguments name."""
    parser = argparse.ArgumentParser()
    several: Any = {"action": "append", "help": "repeatable; default: all"}
    parser.add_argument("--only", choices=list(WORKLOADS), **several)
    parser.add_argument("--peers", choices=[*PEERS, *jax_rounds.FORMS], **several)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--python", default=sys.executable, help="has PyTorch and pfl")
    parser.add_argument("--other", default="", help="another checkout of fl_sketch")
    parser.add_argument("--out", help="a file to which JSON lines are appended")
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # this process draws weights, no more
    options = {"rounds": given.rounds, "python": given.python}
    peers = given.peers or peers
    if given.other:
        peers = [*peers, "other"]
        options["other"] = str(pathlib.Path(given.other).absolute())
    for name in given.only or WORKLOADS:
        for row in rows(name, WORKLOADS[name], peers, **options):
            print(
                f"{name}  {row['peer']:15} {row['seconds']:9.5f} s a round, "
                f"{row['ratio']:6.3f} of the first; {row['model']} model after "
                f"{row['moved']:.5g}; {row['device']}",
                flush=True,
            )
            if given.out:
                with open(given.out, "a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
