"""A round of federated averaging in PyTorch, in the forms that one would write.

  loop            clients one after the other, their parameters in one vector
  processes       the same in two processes of one thread, on CPUs
  vmap            all clients at once, by `torch.func`
  compile         its steps by `torch.compile`
  graph           a client's whole local work as one CUDA graph
  compile_graphs  steps by `torch.compile(mode="reduce-overhead")`, which records graphs
  round_graph     compiled steps, and a whole round of them as one CUDA graph

See `serving` for how the program is used.
"""

# pyright: reportMissingImports=false
import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fl_sketch.experiments.bench.peers import serving, torch_models
from fl_sketch.experiments.bench.peers.serving import Player
from fl_sketch.experiments.bench.workloads import Workload

FORMS = (
    "loop",
    "processes",
    "vmap",
    "compile",
    "graph",
    "compile_graphs",
    "round_graph",
)
WARM_CALLS = 3  # before a CUDA graph is recorded, on a stream of its own
PROCESSES = 2


class Clients:
    """Clients one after the other, of which each is a walk from the global model.

    Attributes:
      model: the global model, one vector.
      total: the sum of the models that clients ended with.
    """

    model: torch.Tensor
    total: torch.Tensor

    def __init__(self, work: Workload, device: str):
        """Makes the model and the examples of a workload."""
        self.work, first = work, torch_models.first_params(work, device)
        self.model = torch.cat([weight.flatten() for weight in first.values()])
        self.total, self._own = torch.zeros_like(self.model), self.model.clone()
        self._views = _views(self._own, first)
        self._params = [view.requires_grad_() for view in self._views.values()]
        self._loss = torch_models.loss_of(work)
        self.inputs, self.targets = torch_models.examples(work, device)

    def visit(self, rows: torch.Tensor) -> None:
        """Adds the model of one client, of the rows [batches, batch] of its plan."""
        work = self.work
        with torch.no_grad():
            self._own.copy_(self.model)
        batch = self._batch(rows[0])
        for step in range(work.steps):
            if step and not work.full_batch:
                batch = self._batch(rows[step])
            grads = torch.autograd.grad(self._loss(self._views, *batch), self._params)
            with torch.no_grad():
                torch._foreach_add_(self._params, grads, alpha=-work.rate)
        self.total.add_(self._own)

    def finish(self) -> None:
        """Makes the mean the new model."""
        torch.div(self.total, self.work.cohort, out=self.model)

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the global model."""
        views = _views(self.model, self._views)
        return {path: copied(view) for path, view in views.items()}

    def _batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[rows], self.targets[rows]


def loop(work: Workload, device: str) -> Player:
    """Returns rounds of clients one after the other."""
    clients = Clients(work, device)

    def play(plan):
        clients.total.zero_()
        for rows in plan:
            clients.visit(rows)
        clients.finish()

    return player(device, play, clients.weights)


def graph(work: Workload, device: str) -> Player:
    """Returns rounds in which the local work of a client is one CUDA graph."""
    clients, kept = Clients(work, device), []

    def play(plan):
        if not kept:
            rows = plan[0].clone()
            kept.extend((rows, _recorded(lambda: clients.visit(rows))))
        rows, recorded = kept
        clients.total.zero_()
        for of_client in plan:
            rows.copy_(of_client)
            recorded.replay()
        clients.finish()

    return player(device, play, clients.weights)


def processes(work: Workload, device: str) -> Player:
    """Returns rounds of which processes of one thread play equal parts."""
    context = torch.multiprocessing.get_context("fork")
    torch.set_num_threads(1)
    clients = Clients(work, device)
    clients.model.share_memory_()
    totals = torch.zeros(PROCESSES, len(clients.model)).share_memory_()

    def serve(number, pipe):
        clients.total = totals[number]
        while True:
            plan = torch.from_numpy(pipe.recv())
            clients.total.zero_()
            for rows in plan:
                clients.visit(rows)
            pipe.send(None)

    pipes, started = [], []
    for number in range(PROCESSES):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(number, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        started.append(process)

    def play(plan):
        parts = np.array_split(plan.numpy(), PROCESSES)
        for pipe, part in zip(pipes, parts, strict=True):
            pipe.send(part)
        for pipe in pipes:
            pipe.recv()
        torch.sum(totals, 0, out=clients.total)
        clients.finish()

    helpers = [process.pid for process in started]
    return player(device, play, clients.weights)._replace(helpers=lambda: helpers)


def all_at_once(work: Workload, device: str, form: str) -> Player:
    """Returns rounds of all clients at once, in one of the forms with `vmap`."""
    model = torch_models.first_params(work, device)
    inputs, targets = torch_models.examples(work, device)
    step, recorded = _step(work, form), []

    def a_round(plan):
        models = {
            path: weight.expand(work.cohort, *weight.shape).clone()
            for path, weight in model.items()
        }
        batch = inputs[plan[:, 0]], targets[plan[:, 0]]
        for number in range(work.steps):
            if number and not work.full_batch:
                batch = inputs[plan[:, number]], targets[plan[:, number]]
            models = step(models, *batch)
            if form == "compile_graphs":  # the next call writes there again
                models = {path: weight.clone() for path, weight in models.items()}
        for path, weight in model.items():
            torch.mean(models[path], 0, out=weight)

    def play(plan):
        if form != "round_graph":
            a_round(plan)
            return
        if not recorded:
            rows = plan.clone()
            kept = {path: weight.clone() for path, weight in model.items()}
            recorded.extend((rows, _recorded(lambda: a_round(rows))))
            for path, weight in model.items():
                weight.copy_(kept[path])
        rows, program = recorded
        rows.copy_(plan)
        program.replay()

    return player(
        device,
        torch.no_grad()(play),
        lambda: {path: copied(weight) for path, weight in model.items()},
    )


def _step(work: Workload, form: str) -> Callable[..., dict[str, torch.Tensor]]:
    """Returns a step of all clients, `(models, inputs, targets) -> models`."""
    gradients = torch.func.vmap(torch.func.grad(torch_models.loss_of(work)))

    def step(models, inputs, targets):
        grads = gradients(models, inputs, targets)
        return {path: x - work.rate * grads[path] for path, x in models.items()}

    if form == "vmap":
        return step
    mode = "reduce-overhead" if form == "compile_graphs" else "default"
    return torch.compile(step, mode=mode, dynamic=False)


def _recorded(work: Callable[[], None]) -> Any:
    """Returns a CUDA graph of some work, which is played a few times before."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_CALLS):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        work()
    return recorded


def _views(vector: torch.Tensor, like: torch_models.Params) -> dict[str, torch.Tensor]:
    """Returns the parts of a vector, in the shapes of parameters."""
    parts = vector.split([weight.numel() for weight in like.values()])
    pairs = zip(like.items(), parts, strict=True)
    return {path: part.view(weight.shape) for (path, weight), part in pairs}


def copied(weight: torch.Tensor) -> np.ndarray:
    """Returns a copy of a tensor's numbers."""
    return weight.detach().cpu().numpy().copy()


def player(device: str, play: Callable[[torch.Tensor], None], weights) -> Player:
    """Returns the rounds of `play`, which may return before a GPU is done."""

    def place(plans: Sequence[np.ndarray]) -> torch.Tensor:
        [plan] = plans
        placed = torch.from_numpy(plan).long().to(device)
        if device == "cuda":
            torch.cuda.synchronize()
        return placed

    if device == "cpu":
        name = platform.processor() or platform.machine()
        return Player(place, play, weights, f"cpu {name}")

    torch.cuda.reset_peak_memory_stats()  # what loading took is not that of rounds

    def until_done(placed):
        play(placed)
        torch.cuda.synchronize()

    return Player(
        place,
        until_done,
        weights,
        f"gpu {torch.cuda.get_device_name()}",
        lambda: torch.cuda.max_memory_allocated() / 1e6,
    )


def prepared(tf32: bool) -> str:
    """Sets precision and threads; returns the device, "cuda" or "cpu"."""
    torch.set_num_threads(serving.cores())
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    return "cuda" if torch.cuda.is_available() else "cpu"


def main(argv: Sequence[str] | None = None) -> None:
    """Serves the rounds that the arguments ask for."""
    given = serving.arguments(argv, forms=FORMS)
    work, device = serving.workload(given), prepared(bool(given.tf32))
    alone = {"loop": loop, "graph": graph, "processes": processes}

    def build():
        if given.form in alone:
            return alone[given.form](work, device)
        return all_at_once(work, device, given.form)

    serving.serve(work, f"torch {torch.__version__}", build)


if __name__ == "__main__":
    main()
