"""One contender of the rounds in `rounds.py`; each runs in a separate process.

Every contender does the same work: clients with 60 examples of 28 x 28 pixels take 6 SGD steps of batch 10 from the
server's model, in one thread. Nothing is imported before the contender needs it, since memory is also compared. Other
contenders import nothing of fedpriv, since pfl-research has a separate environment.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import process_time

import torch
from memory import peak_megabytes
from torch import Tensor, nn

EXAMPLES, BATCH, STEPS = 60, 10, 6
RATE, CLIP, NOISE = 0.1, 0.4, 1.0


@dataclass(frozen=True)
class Task:
    """The work: `rounds` rounds after a first one for warm-up, by `clients` clients."""

    model: Callable[[], nn.Module]
    unit: str
    clients: int
    rounds: int
    laps: list[float] = field(default_factory=list)

    def data(self) -> tuple[Tensor, Tensor]:
        """Returns inputs and labels of all clients."""
        return torch.randn(self.clients, EXAMPLES, 1, 28, 28), torch.randint(0, 10, (self.clients, EXAMPLES))

    def lap(self) -> None:
        """Marks the end of a round."""
        self.laps.append(process_time())


def cnn() -> nn.Module:
    """Returns the CNN with 26 010 parameters from pfl-research's own benchmarks."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def linear() -> nn.Module:
    """Returns softmax regression with bias, 7 850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def plain(task: Task) -> None:
    """Runs FedAvg written by hand, without any privacy."""
    inputs, targets = task.data()
    server = task.model()
    for _ in range(1 + task.rounds):
        changes: list[list[Tensor]] = []
        for x, y in zip(inputs, targets, strict=True):
            local = copy.deepcopy(server)
            optimizer = torch.optim.SGD(local.parameters(), lr=RATE)
            for part in torch.randperm(EXAMPLES).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(x[part]), y[part]).backward()
                optimizer.step()
            changes.append(change(local, server))
        add_mean(server, changes)
        task.lap()


def opacus(task: Task) -> None:
    """Runs FedAvg with opacus: examples are clipped, and each client has a separate engine."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    inputs, targets = task.data()
    server = task.model()
    for _ in range(1 + task.rounds):
        changes: list[list[Tensor]] = []
        for x, y in zip(inputs, targets, strict=True):
            local = copy.deepcopy(server).train()
            private, optimizer, loader = PrivacyEngine().make_private(
                module=local,
                optimizer=torch.optim.SGD(local.parameters(), lr=RATE),
                data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True),
                noise_multiplier=NOISE,
                max_grad_norm=CLIP,
                poisson_sampling=False,
            )
            for a, b in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(a), b).backward()
                optimizer.step()
            changes.append(change(private, server))
        add_mean(server, changes)
        task.lap()


def pfl(task: Task) -> None:
    """Runs pfl-research as documented: FedAvg with a Gaussian mechanism that clips updates and noises their sum."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class Laps(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            task.lap()
            return False, Metrics()

    inputs, targets = task.data()
    users = FederatedDataset(
        lambda user: PyTorchTensorDataset((inputs[user], targets[user]), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(task.clients))),
    )
    module = task.model()
    module.loss = lambda x, y: nn.functional.cross_entropy(module(x), y)
    # the first round requests metrics of each user; these cost nothing
    module.metrics = lambda x, y: {"none": Weighted(0, 1)}
    FederatedAveraging().run(
        NNAlgorithmParams(
            1 + task.rounds, evaluation_frequency=10**6, train_cohort_size=task.clients, val_cohort_size=0
        ),
        SimulatedBackend(users, users, [CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Laps()],
    )


def fedpriv(task: Task) -> None:
    """Runs fedpriv, which clips whole updates (`client`) or each example's gradient (`sample`)."""
    from torch.utils.data import TensorDataset

    from fedpriv.clients.client import make_clients
    from fedpriv.privacy.clipping import Clip
    from fedpriv.privacy.settings import FixedSize, Privacy
    from fedpriv.runs.training import Training
    from fedpriv.strategies.fedavg import fedavg

    inputs, targets = task.data()
    clients = make_clients(
        task.model(), nn.CrossEntropyLoss(), [TensorDataset(*pair) for pair in zip(inputs, targets, strict=True)]
    )
    privacy = Privacy(
        noise_multiplier=NOISE,
        clip=Clip(CLIP),
        unit=task.unit,
        noise_on="message" if task.unit == "client" else "gradient",
        sampling=FixedSize(BATCH),
    )
    for _ in Training(clients, fedavg(RATE, STEPS), privacy, rounds=1 + task.rounds):
        task.lap()


def change(local: nn.Module, server: nn.Module) -> list[Tensor]:
    """Returns the message of a client."""
    return [p.detach() - q.detach() for p, q in zip(local.parameters(), server.parameters(), strict=True)]


def add_mean(server: nn.Module, changes: list[list[Tensor]]) -> None:
    """Updates the server's model with the mean message."""
    for parameter, all_changes in zip(server.parameters(), zip(*changes, strict=True), strict=True):
        parameter.data += torch.stack(all_changes).mean(0)


def cost(name: str, model: str, unit: str, clients: int, rounds: int) -> dict[str, float]:
    """Returns processor milliseconds of a round after the first, and peak megabytes of this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = Task({"cnn": cnn, "linear": linear}[model], unit, clients, rounds)
    {"plain": plain, "opacus": opacus, "pfl": pfl, "fedpriv": fedpriv}[name](task)
    milliseconds = [1e3 * (after - before) for before, after in pairwise(task.laps)]
    # Linux counts in KiB
    return {"ms": median(milliseconds), "MB": peak_megabytes()}
