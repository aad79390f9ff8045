"""The same rounds in the engine, in plain jax, in PyTorch and in pfl, timed in turn.

Each peer is a program in its own process, see `peers`. All are started and warmed up,
on two cores one after the other. Then each runs a round in turn, so that a change of
the machine's speed affects all equally. All must make the same model.
"""

import contextlib
import json
import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from fl_sketch.core import validate
from fl_sketch.experiments.bench.peers import inputs
from fl_sketch.experiments.bench.peers.serving import END, GO, READY, Summary, cores
from fl_sketch.experiments.bench.timing import ratio
from fl_sketch.experiments.measurements import Column, Table

ROOM = "fl_sketch.experiments.bench.peers"
ROOT = pathlib.Path(__file__).parents[3]  # the folder of fl_sketch
PATIENCE = 900  # seconds in which a peer is warm, or has played
ANYWHERE, ON_GPU, ON_CPU = "anywhere", "gpu", "cpu"


class Peer(NamedTuple):
    """A program and what it needs.

    Attributes:
      package: the package that it times.
      where: the platform on which its form exists.
    """

    program: str
    form: str
    package: str = "jax"
    where: str = ANYWHERE


PEERS = {
    "engine": Peer("jax_rounds", "engine"),
    "engine_many": Peer("jax_rounds", "engine_many"),
    "engine_one": Peer("jax_rounds", "engine_one", where=ON_CPU),
    "plain": Peer("jax_rounds", "plain"),
    "torch_loop": Peer("torch_rounds", "loop", "torch"),
    "torch_processes": Peer("torch_rounds", "processes", "torch", ON_CPU),
    "torch_vmap": Peer("torch_rounds", "vmap", "torch"),
    "torch_compile": Peer("torch_rounds", "compile", "torch"),
    "torch_graph": Peer("torch_rounds", "graph", "torch", ON_GPU),
    "torch_compile_graphs": Peer("torch_rounds", "compile_graphs", "torch", ON_GPU),
    "torch_round_graph": Peer("torch_rounds", "round_graph", "torch", ON_GPU),
    "pfl": Peer("pfl_rounds", "pfl", "pfl"),
}
NEEDS = {"torch": ("torch",), "pfl": ("torch", "pfl")}  # modules that are imported
PROBE = (
    "import importlib.util, json\n"
    "found = [n for n in ('torch', 'pfl') if importlib.util.find_spec(n)]\n"
    "if 'torch' in found:\n"
    "    import torch\n"
    "    found += ['gpu'] if torch.cuda.is_available() else []\n"
    "print(json.dumps(found))\n"
)
# How far models may be apart, of the length of the parameters and of how far they
# moved: W1's five steps of 0.1 carry the last digits of float32 to the third one of the
# way. Where products are of TF32, with 10 bits of mantissa, further.
NEAR, NEAR_TF32 = (1e-5, 1e-2), (1e-4, 5e-2)


class Row(NamedTuple):
    """What was measured of a peer on a workload.

    Attributes:
      seconds: the median time of a round.
      ratio: this over that of the first peer, the median of rounds timed in turn.
      first_seconds: the time of the first round, with all that is compiled for it.
      megabytes: the most memory of its processes on the host, while it plays.
      device_megabytes: the most memory on an accelerator.
      length: the length of the model's parameters after the first rounds.
      moved: how far they have moved in the first one.
      check: "same" if both are those of the first peer, else "differs".
    """

    workload: Annotated[str, Column("8")]
    peer: Annotated[str, Column("20")]
    runs_on: Annotated[str, Column("22", "device")]
    seconds: Annotated[float, Column("9.5f", "s/round")]
    ratio: Annotated[float, Column("8.3f", "/ first")]
    first_seconds: Annotated[float, Column("7.2f", "first")]
    megabytes: Annotated[float, Column("7.0f", "MB")]
    device_megabytes: Annotated[float | None, Column("9.0f", "device MB")]
    length: Annotated[float, Column("10.5f")]
    moved: Annotated[float, Column("10.5g")]
    check: Annotated[str, Column("", "check")]
    rounds: int
    fastest: float
    version: str
    tf32: bool


TABLE = Table.of(Row)


class Lost(RuntimeError):
    """A peer that ended too early; the text says why."""


class Process:
    """A peer that runs; leaving its context ends it."""

    def __init__(self, name: str, words: Sequence[str]):
        """Starts the program of that `name` by the `words` of its command."""
        self.name = name
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        where = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {
            "PYTHONPATH": os.pathsep.join(where),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # others share the GPU
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # a first round is a first one
        }
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=os.environ | own,
            start_new_session=True,  # a separate group, to be ended together
        )

    def __enter__(self) -> "Process":
        """Returns itself."""
        return self

    def __exit__(self, *_) -> None:
        """Ends the program and what it has started."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):  # it has not read all
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def wait_until_ready(self) -> None:
        """Returns when the program is warm."""
        line = self._line()
        if line != READY:
            msg = f"{self.name} is left out: expected {READY}, got {line!r}"
            raise Lost(msg)

    def seconds(self) -> float:
        """Returns how long a round takes now."""
        return float(self._asked(GO))

    def summary(self) -> Summary:
        """Returns what the program says at its end."""
        return Summary(**json.loads(self._asked(END)))

    def _asked(self, word: str) -> str:
        with contextlib.suppress(BrokenPipeError):  # its end is seen below
            print(word, file=self._process.stdin, flush=True)
        return self._line()

    def _line(self) -> str:
        output = self._process.stdout
        assert output
        if not select.select([output], [], [], PATIENCE)[0]:
            msg = f"{self.name} is left out: it printed nothing for {PATIENCE} seconds"
            raise Lost(msg)
        line = output.readline().strip()
        if line:
            return line
        code = self._process.wait()
        self._said.seek(0)
        said = [text.strip() for text in self._said.readlines() if text.strip()]
        last = said[-1] if said else "it printed nothing"
        msg = f"{self.name} is left out: it ended with exit code {code} ({last})"
        raise Lost(msg)


def run(
    peers: Sequence[str],
    workloads: Sequence[str],
    *,
    rounds: int,
    cohort: int = 0,
    tf32: bool = True,
    torch_python: str | None = None,
) -> Iterator[Row]:
    """Returns the rows of the table, workload by workload.

    Args:
      peers: names of `PEERS`; empty: all that can run here.
      rounds: the number of timed rounds.
      cohort: the number of clients of a round; 0: that of the workload.
      tf32: whether all may round products to TF32 on a GPU; if not, none does.
      torch_python: the interpreter that has PyTorch and pfl; None: this one.

    Raises:
      ValueError: for a peer that is named and cannot run here.
    """
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # nor does this process
    for name in workloads:
        validate.one_of(tuple(inputs.WORKLOADS), workloads=name)
        people = f"the population of {name}"
        validate.at_most(inputs.WORKLOADS[name].population, people, cohort=cohort)
    python = torch_python or sys.executable
    lacks = missing(peers or list(PEERS), python)
    if peers and lacks:
        raise ValueError("; ".join(lacks.values()))
    for reason in lacks.values():
        print(f"left out: {reason}", file=sys.stderr)
    able = [name for name in peers or PEERS if name not in lacks]
    options = [f"--cohort={cohort}", f"--tf32={int(tf32)}"]

    def command(name: str, workload: str) -> list[str]:
        peer = PEERS[name]
        own = sys.executable if peer.package == "jax" else python
        words = [own, "-m", f"{ROOM}.{peer.program}", f"--form={peer.form}"]
        return [*words, f"--workload={workload}", *options]

    return (
        row._replace(tf32=tf32)
        for workload in workloads
        for row in compared(
            workload, {name: command(name, workload) for name in able}, rounds, tf32
        )
    )


def missing(peers: Sequence[str], python: str) -> dict[str, str]:
    """Returns why peers cannot run here, by their names.

    Args:
      python: the interpreter of those that are not in jax.
    """
    if all(PEERS[name].package == "jax" for name in peers):
        return {}
    try:
        answer = subprocess.run(
            [python, "-c", PROBE], capture_output=True, text=True, check=True
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.CalledProcessError) as error:
        msg = f"Expected the path of a Python, got torch_python={python}: {error}"
        raise ValueError(msg) from None
    why = {}
    for name in peers:
        peer = PEERS[name]
        lacks = [need for need in NEEDS.get(peer.package, ()) if need not in found]
        if lacks:
            why[name] = f"{name} needs {' and '.join(lacks)}, not installed in {python}"
        elif peer.where == ON_GPU and "gpu" not in found:
            why[name] = f"{name} needs a GPU that PyTorch sees"
        elif peer.where == ON_CPU and "gpu" in found:
            why[name] = f"{name} is a form for CPUs, and PyTorch sees a GPU"
    return why


def compared(
    workload: str, commands: dict[str, list[str]], rounds: int, tf32: bool
) -> Iterator[Row]:
    """Yields a row for each peer that lives to the end.

    Args:
      commands: the words that start each peer, by its name.
    """
    with contextlib.ExitStack() as ends:
        alive: dict[str, Process] = {}
        for names in _side_by_side(list(commands)):
            for name in names:
                alive[name] = ends.enter_context(Process(name, commands[name]))
            for name in names:
                with _or_left_out(alive, name):
                    alive[name].wait_until_ready()
        samples = {name: [] for name in alive}
        for number in range(rounds):
            order = list(alive)
            turn = number % max(1, len(order))
            for name in order[turn:] + order[:turn]:
                with _or_left_out(alive, name):
                    samples[name].append(alive[name].seconds())
        ends_of: dict[str, Summary] = {}
        for name in list(alive):
            with _or_left_out(alive, name):
                ends_of[name] = alive[name].summary()
    for name in ends_of:
        yield _row(workload, name, ends_of, samples, tf32)


def _side_by_side(names: list[str]) -> list[list[str]]:
    """Returns names in blocks that are warmed up together: a half of the cores each."""
    block = max(1, cores() // 2)
    return [names[first : first + block] for first in range(0, len(names), block)]


@contextlib.contextmanager
def _or_left_out(alive: dict[str, Process], name: str) -> Iterator[None]:
    """Takes a peer that was lost out of those that are alive, and says so."""
    try:
        yield
    except Lost as lost:
        alive.pop(name, None)
        print(lost, file=sys.stderr)


def _row(
    workload: str,
    name: str,
    ends: dict[str, Summary],
    samples: dict[str, list[float]],
    tf32: bool,
) -> Row:
    end, first = ends[name], next(iter(ends))
    near = NEAR_TF32 if tf32 and not end.device.startswith("cpu") else NEAR
    pairs = [(end.length, ends[first].length), (end.moved, ends[first].moved)]
    same = all(
        abs(ours - theirs) <= share * abs(theirs)
        for (ours, theirs), share in zip(pairs, near, strict=True)
    )
    return Row(
        workload=workload,
        peer=name,
        runs_on=end.device,
        seconds=statistics.median(samples[name]),
        ratio=ratio(samples[name], samples[first]),
        first_seconds=end.first_seconds,
        megabytes=end.megabytes,
        device_megabytes=end.device_megabytes,
        length=end.length,
        moved=end.moved,
        check="same" if same else "differs",
        rounds=len(samples[name]),
        fastest=min(samples[name]),
        version=end.version,
        tf32=tf32,
    )
