"""The same rounds in PyTorch, in two forms, and by pfl, for `benchmarks.peers`.

Models are functions of their parameters, which keep the paths that they have in flax.
Images are in NCHW order and kernels as PyTorch has them.
"""

# pyright: reportMissingImports=false
import logging
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import rounds
from benchmarks.rounds import Workload

PROCESSES = 2


def dense(p, name, x):
    return F.linear(x, p[f"{name}/kernel"], p[f"{name}/bias"])


def conv(p, name, x, padding=0):
    return F.conv2d(x, p[f"{name}/kernel"], p[f"{name}/bias"], padding=padding)


def group_norm(p, name, x):
    groups = math.gcd(8, x.shape[1])
    return F.group_norm(x, groups, p[f"{name}/scale"], p[f"{name}/bias"], 1e-6)


def logistic(p, x):
    return dense(p, "dense", x.flatten(1))


def cnn(p, x):
    x = F.relu(conv(p, "conv1", x))
    x = F.max_pool2d(F.relu(conv(p, "conv2", x)), 2).flatten(1)
    return dense(p, "dense2", F.relu(dense(p, "dense1", x)))


def lenet(p, x):
    x = F.max_pool2d(F.relu(conv(p, "conv1", x, padding=2)), 2)
    x = F.max_pool2d(F.relu(conv(p, "conv2", x)), 2).flatten(1)
    x = F.relu(dense(p, "dense2", F.relu(dense(p, "dense1", x))))
    return dense(p, "dense3", x)


def resnet(p, x):
    x = F.relu(group_norm(p, "norm", F.conv2d(x, p["conv/kernel"], padding=1)))
    for stage in range(3):
        for block in range(3):
            name = f"stage{stage + 1}_block{block + 1}"
            kernels = p[f"{name}/conv1/kernel"], p[f"{name}/conv2/kernel"]
            if stage > 0 and block == 0:  # zeros at the end alone, as jax has it
                y = F.conv2d(F.pad(x, (0, 1, 0, 1)), kernels[0], stride=2)
                x = x[:, :, ::2, ::2]
            else:
                y = F.conv2d(x, kernels[0], padding=1)
            y = F.relu(group_norm(p, f"{name}/norm1", y))
            y = group_norm(p, f"{name}/norm2", F.conv2d(y, kernels[1], padding=1))
            more = y.shape[1] - x.shape[1]
            x = F.relu(y + F.pad(x, (0, 0, 0, 0, 0, more)))
    return dense(p, "dense", x.mean((2, 3)))


MODELS = {"cnn": cnn, "lenet": lenet, "logistic": logistic, "resnet": resnet}
FLAT = {"cnn": (14, 14, 64), "lenet": (5, 5, 16)}  # what goes into the layer dense1


def loss_of(work: Workload):
    logits = MODELS[work.model]
    return lambda params, x, y: F.cross_entropy(logits(params, x), y)


def first_params(work: Workload, weights: rounds.Weights, device: str):
    """Returns the initial weights in PyTorch's layout."""

    def in_layout(path, weight):
        if path == "dense1/kernel":  # its inputs are in HWC order
            parts = weight.reshape(*FLAT[work.model], -1)
            weight = np.moveaxis(parts, 2, 0).reshape(weight.shape)
        if weight.ndim == 4:
            weight = weight.transpose(3, 2, 0, 1)
        elif weight.ndim == 2 and not (
            len(weight) == rounds.CLASSES != weight.shape[1]
        ):
            weight = weight.T  # unless it is stored by class
        return torch.from_numpy(np.ascontiguousarray(weight)).to(device)

    return {path: in_layout(path, weight) for path, weight in weights.items()}


def examples(work: Workload, device: str):
    images, targets = (
        torch.from_numpy(a).to(device) for a in rounds.drawn_examples(work)
    )
    return images.permute(0, 3, 1, 2).contiguous().float() / 255, targets.long()


def processes(work: Workload, params, device: str):
    """Clients one after the other, in processes of one thread that share them."""
    torch.set_num_threads(1)
    context = torch.multiprocessing.get_context("fork")
    loss, (inputs, targets) = loss_of(work), examples(work, device)
    model = torch.cat([weight.flatten() for weight in params.values()]).share_memory_()
    totals = torch.zeros(PROCESSES, len(model)).share_memory_()

    def views(vector):
        parts = vector.split([weight.numel() for weight in params.values()])
        pairs = zip(params.items(), parts, strict=True)
        return {path: part.view(weight.shape) for (path, weight), part in pairs}

    def visit_clients(total, pipe):
        own = model.clone()
        of_client = {path: view.requires_grad_() for path, view in views(own).items()}
        trained = list(of_client.values())
        while True:
            plan = torch.from_numpy(pipe.recv())
            total.zero_()
            for rows in plan:
                with torch.no_grad():
                    own.copy_(model)
                for step in range(work.steps):
                    if step == 0 or not work.full_batch:
                        batch = inputs[rows[step]], targets[rows[step]]
                    grads = torch.autograd.grad(loss(of_client, *batch), trained)
                    with torch.no_grad():
                        torch._foreach_add_(trained, grads, alpha=-work.rate)
                total.add_(own)
            pipe.send(None)

    pipes = []
    for total in totals:
        ours, theirs = context.Pipe()
        context.Process(target=visit_clients, args=(total, theirs), daemon=True).start()
        pipes.append(ours)

    def play(plan):
        parts = np.array_split(plan.numpy(), PROCESSES)
        for pipe, part in zip(pipes, parts, strict=True):
            pipe.send(part)
        for pipe in pipes:
            pipe.recv()
        torch.div(totals.sum(0), work.cohort, out=model)

    return play, lambda: views(model)


def compiled(work: Workload, params, device: str):
    """All clients at once, their steps by torch.compile: on a GPU as CUDA graphs."""
    loss, (inputs, targets) = loss_of(work), examples(work, device)
    gradients = torch.func.vmap(torch.func.grad(loss))

    def step(models, x, y):
        grads = gradients(models, x, y)
        return {path: x - work.rate * grads[path] for path, x in models.items()}

    mode = "reduce-overhead" if device == "cuda" else "default"
    step = torch.compile(step, mode=mode, dynamic=False)

    @torch.no_grad()
    def play(plan):
        models = {
            path: weight.expand(work.cohort, *weight.shape).clone()
            for path, weight in params.items()
        }
        for number in range(work.steps):
            if number == 0 or not work.full_batch:
                batch = inputs[plan[:, number]], targets[plan[:, number]]
            models = step(models, *batch)
            if device == "cuda":  # the next call of a graph writes there again
                models = {path: weight.clone() for path, weight in models.items()}
        for path, weight in params.items():
            torch.mean(models[path], 0, out=weight)

    return play, lambda: params


def by_pfl(work: Workload, params, device: str):
    """A central iteration of pfl, which adds up the differences of trained copies."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    logging.disable(logging.INFO)
    never, users, loss = 10**9, {"drawn": 0}, loss_of(work)
    inputs, targets = examples(work, device)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(params.values())

        def by_path(self):
            return dict(zip(params, self.weights, strict=True))

        def loss(self, x, y, eval=False):  # noqa: A002, ARG002
            return loss(self.by_path(), x, y)

        def metrics(self, x, y, eval=False):  # noqa: A002, ARG002
            return {}

    class OneIteration(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, **_):  # noqa: ARG002
            return True, type(aggregate_metrics)()

    def draw():
        users["drawn"] += 1
        return users["drawn"] - 1

    def dataset(user):
        rows = users["plan"][user].flatten()
        return Dataset(raw_data=[inputs[rows], targets[rows]], user_id=str(user))

    net = Net()
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    federated = FederatedDataset(dataset, draw)
    backend = SimulatedBackend(
        training_data=federated, val_data=federated, postprocessors=[WeightByUser()]
    )
    train = NNTrainHyperParams(
        local_learning_rate=work.rate,
        local_num_epochs=work.steps if work.full_batch else 1,
        local_batch_size=None if work.full_batch else work.batch,
    )
    central = NNAlgorithmParams(
        central_num_iterations=never,
        evaluation_frequency=never,
        train_cohort_size=work.cohort,
        val_cohort_size=0,
    )
    algorithm = FederatedAveraging()
    algorithm._current_central_iteration = 1  # in iteration 0 pfl evaluates

    def play(plan):
        users.update(plan=plan, drawn=0)
        algorithm.run(
            algorithm_params=central,
            backend=backend,
            model=model,
            model_train_params=train,
            callbacks=[OneIteration()],
            send_metrics_to_platform=False,
        )

    return play, net.by_path


FORMS = {"processes": processes, "compile": compiled, "pfl": by_pfl}


def player(work: Workload, weights: rounds.Weights, form: str) -> rounds.Player:
    """Returns what is served of a form."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    on_gpu = torch.cuda.is_available() and form != "processes"
    device, wait = "cpu", lambda: None
    if on_gpu:
        device, wait = "cuda", torch.cuda.synchronize
    play, params_of = FORMS[form](work, first_params(work, weights, device), device)

    def place(plan):
        placed = torch.from_numpy(plan).long().to(device)
        wait()
        return placed

    def until_done(placed):
        play(placed)
        wait()

    def copied():
        pairs = params_of().items()
        return {path: w.detach().cpu().numpy().copy() for path, w in pairs}

    name = f"gpu {torch.cuda.get_device_name()}" if on_gpu else "cpu"
    return rounds.Player(place, until_done, copied, name)


if __name__ == "__main__":
    rounds.serve(f"torch {torch.__version__}", player)
