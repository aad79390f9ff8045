"""The same round by pfl: its federated averaging in its simulated backend.

A round is a central iteration of pfl, which wraps a client's examples into a dataset,
trains a copy of the model on it and adds up the differences. See `serving` for how the
program is used.
"""

# pyright: reportMissingImports=false
import importlib.metadata
import logging
from collections.abc import Sequence

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

from fl_sketch.experiments.bench.peers import serving, torch_models, torch_rounds
from fl_sketch.experiments.bench.peers.serving import Player
from fl_sketch.experiments.bench.workloads import Workload

NEVER = 10**9  # an iteration that no run reaches


class Net(torch.nn.Module):
    """A model as pfl wants it: a module with a loss and metrics."""

    def __init__(self, work: Workload, device: str):
        """Makes the model of a workload on a device."""
        super().__init__()
        first = torch_models.first_params(work, device)
        self._paths = list(first)
        self.weights = torch.nn.ParameterList(first.values())
        self._loss = torch_models.loss_of(work)

    def by_path(self) -> dict[str, torch.Tensor]:
        """Returns the parameters by their paths."""
        return dict(zip(self._paths, self.weights, strict=True))

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False):  # noqa: A002
        """Returns the mean cross-entropy of inputs `x` and targets `y`."""
        del eval
        return self._loss(self.by_path(), x, y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False):  # noqa: A002
        """Returns nothing: rounds are timed without evaluation."""
        del x, y, eval
        return {}


class OneIteration(TrainingProcessCallback):
    """Ends pfl's training after each central iteration."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Returns that training is over, and no metrics."""
        del model, central_iteration
        return True, type(aggregate_metrics)()


class Users:
    """The clients of a round, as pfl draws them.

    Attributes:
      plan: rows of the round, [cohort, batches, batch].
    """

    plan: torch.Tensor

    def __init__(self, work: Workload, device: str):
        """Puts the examples of a workload on a device."""
        self.inputs, self.targets = torch_models.examples(work, device)
        self.plan, self._next = torch.zeros(0), 0

    def begin(self, plan: torch.Tensor) -> None:
        """Begins a round of this `plan`."""
        self.plan, self._next = plan, 0

    def draw(self) -> int:
        """Returns the number of the next client."""
        self._next += 1
        return self._next - 1

    def dataset(self, user: int) -> Dataset:
        """Returns the examples of a client, one batch behind the other."""
        rows = self.plan[user].flatten()
        raw = [self.inputs[rows], self.targets[rows]]
        return Dataset(raw_data=raw, user_id=str(user))


def rounds(work: Workload, device: str) -> Player:
    """Returns rounds by pfl."""
    logging.disable(logging.INFO)
    net, users = Net(work, device), Users(work, device)
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    federated = FederatedDataset(users.dataset, users.draw)
    backend = SimulatedBackend(
        training_data=federated, val_data=federated, postprocessors=[WeightByUser()]
    )
    train = NNTrainHyperParams(
        local_learning_rate=work.rate,
        local_num_epochs=work.steps if work.full_batch else 1,
        local_batch_size=None if work.full_batch else work.batch,
    )
    central = NNAlgorithmParams(
        central_num_iterations=NEVER,
        evaluation_frequency=NEVER,
        train_cohort_size=work.cohort,
        val_cohort_size=0,
    )
    algorithm = FederatedAveraging()
    algorithm._current_central_iteration = 1  # in iteration 0 pfl evaluates

    def play(plan):
        users.begin(plan)
        algorithm.run(
            algorithm_params=central,
            backend=backend,
            model=model,
            model_train_params=train,
            callbacks=[OneIteration()],
            send_metrics_to_platform=False,
        )

    def weights() -> dict[str, np.ndarray]:
        return {p: torch_rounds.copied(w) for p, w in net.by_path().items()}

    return torch_rounds.player(device, play, weights)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves the rounds that the arguments ask for."""
    given = serving.arguments(argv, forms=("pfl",))
    work, device = serving.workload(given), torch_rounds.prepared(bool(given.tf32))
    what = f"pfl {importlib.metadata.version('pfl')}, torch {torch.__version__}"
    serving.serve(work, what, lambda: rounds(work, device))


if __name__ == "__main__":
    main()
