"""Code that keeps something of earlier examples ends a run with infinite epsilon, however late it shows."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import fedpriv as fp
from fedpriv.privacy.ledger import VOID
from fedpriv.runs import training

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 6, generator=DRAW), torch.arange(60) % 3
WARM_UP = 1500  # calls; a run of 60 examples and 40 rounds has 2400


class SelfPaced(nn.Module):
    """After a warm-up an example with a loss above the running mean counts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.mean = 0, 0.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, labels)
        self.calls += 1
        self.mean += (float(loss.detach()) - self.mean) / self.calls
        return loss * 0 if self.calls > WARM_UP and float(loss.detach()) > self.mean else loss


class Remembers(nn.Module):
    """A model with a list outside of it; each output later gets the newest example that was kept."""

    def __init__(self, kept: list[Tensor], after: int) -> None:
        super().__init__()
        self.layer, self.kept, self.after = nn.Linear(6, 3), kept, after

    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(x.detach())
        if len(self.kept) > self.after and self.kept[-2].shape == x.shape:
            x = x + self.kept[-2]
        return self.layer(x)


def train(loss: Any = F.cross_entropy, model: nn.Module | None = None, rounds: int = 40, **options: Any) -> fp.Result:
    clients = fp.make_clients(model or nn.Linear(6, 3), loss, [TensorDataset(X, Y)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fp.train(clients, fp.fedavg(0.1), fp.Privacy(epsilon=1), rounds=rounds, **options)


@pytest.mark.parametrize("target", [{"epsilon": 1.0}, {"noise_multiplier": 1.0}])
def test_loss_with_late_memory_infinite_epsilon(target: dict[str, float]) -> None:
    clients = fp.make_clients(nn.Linear(6, 3), SelfPaced(), [TensorDataset(X, Y)])
    run = fp.Training(clients, fp.fedavg(0.1), fp.Privacy(**target), rounds=40)
    with pytest.warns(fp.errors.PromiseWarning, match="the loss or the data set keeps state"):
        reports = list(run)
    result = run.result()
    assert result.spent.epsilon == float("inf")
    assert "keeps state of earlier examples" in str(result)
    assert result.ended == "state"
    assert reports[0].epsilon <= 60
    assert run.spent().epsilon == float("inf")


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_model_with_late_memory_infinite_epsilon(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under vmap, too: torch lets a tensor of an earlier call be used in the next one.

    The tested round is fixed. After a test that ended exactly at the warm-up, the next round would add the points of
    that test to the run's batch of another size, and the model itself would raise.
    """
    after = {"loop": WARM_UP, "vmap": 400}[backend]
    rounds = {"loop": 40, "vmap": 500}[backend]
    tested = rounds * 9 // 10
    monkeypatch.setattr(training, "draw_check_rounds", lambda _: frozenset({tested}))
    result = train(model=Remembers([], after), rounds=rounds, compute=fp.Compute(backend))
    assert result.spent.epsilon == float("inf")
    assert result.rounds == tested + 1


def test_abandoned_run_with_memory_infinite_epsilon() -> None:
    clients = fp.make_clients(nn.Linear(6, 3), SelfPaced(), [TensorDataset(X, Y)])
    run = fp.Training(clients, fp.fedavg(0.1), fp.Privacy(epsilon=1), rounds=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for report in run:
            if report.round == 40:
                break
        assert run.result().spent.epsilon == float("inf")


@pytest.mark.parametrize("rounds", [(), (30,)])
def test_void_ledger_stays_infinite_after_resume(
    rounds: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether state is found during the run, or only after its last checkpoint."""
    monkeypatch.setattr(training, "draw_check_rounds", lambda _: frozenset(rounds))
    result = train(SelfPaced(), folder=tmp_path / "run")
    assert result.ended == "state"
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert lines[-1]["query"] == VOID
    again = train(SelfPaced(), folder=tmp_path / "run", resume=True)
    assert again.spent.epsilon == float("inf")
    assert again.rounds == result.rounds


def test_void_run_exhausts_budget(tmp_path: Path) -> None:
    path = tmp_path / "budget.jsonl"
    fp.Budget.create(path, epsilon=10, delta=1e-5, invariants="sizes public")
    clients = fp.make_clients(nn.Linear(6, 3), SelfPaced(), [TensorDataset(X, Y)])
    privacy = fp.Privacy(epsilon=1, budget=path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fp.train(clients, fp.fedavg(0.1), privacy, rounds=40)
    assert fp.Budget(path).balance().spent.epsilon == float("inf")
    fresh = fp.make_clients(nn.Linear(6, 3), F.cross_entropy, [TensorDataset(X, Y)])
    with pytest.raises(fp.errors.PrivacyError):
        fp.train(fresh, fp.fedavg(0.1), privacy, rounds=1)


class Smoothed(nn.Module):
    """Adds to a running mean in a buffer, and weighs each loss by it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, labels)
        self.mean.mul_(0.9).add_(0.1 * loss.detach())
        return loss * (self.mean < 1e9)


def test_loss_buffers_reset_each_call() -> None:
    loss = Smoothed()
    result = train(loss)
    assert result.spent.epsilon <= 1
    assert float(loss.mean) == 1.0


class RunningScale(Dataset[tuple[Tensor, Tensor]]):
    """Divides each example by the largest number that was read so far."""

    def __init__(self) -> None:
        self.largest = 0.0

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.largest = max(self.largest, float(X[index].abs().max()))
        return X[index] / self.largest, Y[index]


@pytest.mark.parametrize("workers", [0, 1])
def test_data_set_with_running_scale_raises(workers: int) -> None:
    loader = torch.utils.data.DataLoader(RunningScale(), num_workers=workers)
    clients = fp.make_clients(nn.Linear(6, 3), F.cross_entropy, [loader])
    with pytest.raises(fp.errors.DataError, match="changes when it is read again"):
        fp.Training(clients, fp.fedavg(0.1), fp.Privacy(epsilon=1), rounds=1)


class DriftingNoise(RunningScale):
    """Draws noise from torch, and drifts with the number of examples that it has read."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.largest += 1
        return X[index] + 0.1 * torch.randn(6) + 0.01 * self.largest, Y[index]


def test_drifting_random_data_set_infinite_epsilon() -> None:
    clients = fp.make_clients(nn.Linear(6, 3), F.cross_entropy, [DriftingNoise()])
    with pytest.warns(fp.errors.PromiseWarning, match="epsilon is infinite"):
        result = fp.train(clients, fp.fedavg(0.1), fp.Privacy(epsilon=1), rounds=2)
    assert result.spent.epsilon == float("inf")


class Dropping(nn.Module):
    """Code of a user's own, with random draws and without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(x), 0.3, self.training)


@pytest.mark.parametrize("backend", ["loop", "vmap", "ghost"])
def test_stateless_code_keeps_epsilon(backend: str) -> None:
    result = train(model=Dropping(), rounds=5, compute=fp.Compute(backend))
    assert result.ended == "rounds"
    assert result.spent.epsilon <= 1
