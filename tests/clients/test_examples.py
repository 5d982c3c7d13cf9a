"""Examples come from whatever answers for (clients, places): the run is the same, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients import client_set
from fedpriv.clients.client import Client
from fedpriv.clients.examples import InMemory

SIZES = (9, 14, 3, 14)


class OneByOne:
    """A list of each client's own examples, which are fetched one after another."""

    random = False

    def __init__(
        self, clients: Sequence[Client], device: torch.device, dtype: torch.dtype, numbers: Sequence[int] | None = None
    ) -> None:
        self._own = [[(x.to(dtype), y) for x, y in zip(*client.examples(), strict=True)] for client in clients]
        self.counts, self.asked = torch.tensor([len(own) for own in self._own]), 0

    def take(self, clients: Tensor, places: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor]:
        pairs = zip(clients.tolist(), places.tolist(), strict=True)
        chosen = [self._own[client][place] for client, row in pairs for place in row]
        self.asked += len(chosen)
        found = (torch.stack(column).unflatten(0, places.shape) for column in zip(*chosen, strict=True))
        inputs, targets = found
        return inputs, targets

    def source(self, client: int) -> None:
        pass

    def expect(self, *cohorts: Tensor) -> None:
        pass


def data(seed: int, m: int) -> TensorDataset:
    x = torch.randn(m, 4, generator=torch.Generator().manual_seed(seed))
    x[:, -1] = torch.arange(m) % 2
    return TensorDataset(x, torch.arange(m) % 3)


def trained(strategy: fp.Strategy, privacy: fp.Privacy, backend: str, *constraints: fp.GroupLossGap) -> fp.Training:
    torch.manual_seed(0)
    model = nn.Linear(4, 3) if backend == "linear" else nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    problem = fp.Problem(constraints=constraints)
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), [data(s, m) for s, m in enumerate(SIZES)], problem)
    compute = fp.Compute(backend, device="cpu", max_physical_batch_size=20)
    run = fp.Training(
        clients, strategy, privacy, rounds=4, seed=0, secret_seed=0, compute=compute, optimum=0.0, test=data(9, 5)
    )
    list(run)
    return run


GAP = fp.GroupLossGap(-1, 0.1, fraction=0.5)
RUNS = {
    "drawn batches": (fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.4)), "linear"),
    "fixed batches": (fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0, sampling=fp.FixedSize(5)), "vmap"),
    "all examples": (fp.inexact_admm(), fp.Privacy(noise_multiplier=1.0), "loop"),
    "constraints": (fp.private_al(), fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.4)), "vmap", GAP),
    "exact constraints": (fp.proximal_al(), fp.Privacy(noise_on="none"), "linear", GAP),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.filterwarnings("ignore::fedpriv.errors.PromiseWarning")
def test_other_example_source_gives_same_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(*RUNS[name])
    assert isinstance(first.population.examples, InMemory)
    monkeypatch.setattr(client_set, "InMemory", OneByOne)
    second = trained(*RUNS[name])
    assert isinstance(second.population.examples, OneByOne)
    before = second.population.examples.asked
    assert before > sum(SIZES)
    torch.testing.assert_close(second.result().params, first.result().params, rtol=0, atol=0)
    assert second.result().optimality_gap == first.result().optimality_gap
    assert second.count_duplicates() == first.count_duplicates()
    assert second.population.examples.asked > before
    assert second.ledger.records == first.ledger.records


def test_adjacent_examples_not_copied() -> None:
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), [data(s, m) for s, m in enumerate(SIZES)])
    examples = InMemory(clients, torch.device("cpu"), torch.float32)
    inputs, targets = examples.take(torch.tensor([1]), torch.arange(14).unsqueeze(0))
    assert inputs.data_ptr() == examples.inputs[9].data_ptr()
    assert targets.data_ptr() == examples.targets[9].data_ptr()
    torch.testing.assert_close(inputs[0], data(1, 14).tensors[0])
    some, _ = examples.take(torch.tensor([3, 0]), torch.tensor([[2, 0], [8, 8]]))
    torch.testing.assert_close(some[0], data(3, 14).tensors[0][[2, 0]])
    torch.testing.assert_close(some[1], data(0, 9).tensors[0][[8, 8]])
    mixed, _ = examples.take(torch.tensor([1]), torch.tensor([[0, 2, 1, 3]]))  # as many as lie between first and last
    torch.testing.assert_close(mixed[0], data(1, 14).tensors[0][[0, 2, 1, 3]])
