"""The overhead of a short round, counted: calls, tensor operations, accounting bounds, checks of the folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from counting_calls import count_calls
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.layout import checksum_constants, collect_constants, find_changed_constants
from fedpriv.privacy.accounting.running_totals import Totals
from fedpriv.privacy.record import Record
from fedpriv.storage.folder import RunFolder

ROUNDS = 60


def training(folder: Path | None = None) -> fp.Training:
    """A run of one client with eight examples of four numbers."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
    clients = fp.make_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), [data])
    privacy = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.5))
    return fp.Training(clients, fp.fedavg(0.01), privacy, rounds=ROUNDS, folder=folder, checkpoint_every=ROUNDS)


class Operations(TorchDispatchMode):
    """Counts tensor operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def calls_of_a_round(rounds: Iterator[fp.RoundReport]) -> int:
    """Calls of an ordinary round: the fewest of eight, since a few secret rounds also test the state of user code."""
    for _ in range(20):
        next(rounds)
    return min(count_calls(lambda: next(rounds)) for _ in range(8))


def test_round_calls_and_operations_bounded() -> None:
    rounds = iter(training())
    assert calls_of_a_round(rounds) <= 880
    with Operations() as operations:
        next(rounds)
    assert operations.count <= 103


def test_round_calls_with_folder_bounded(tmp_path: Path) -> None:
    assert calls_of_a_round(iter(training(tmp_path / "run"))) <= 970


def test_quick_bound_skipped_if_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[float] = []
    real = Totals.epsilon
    monkeypatch.setattr(Totals, "epsilon", lambda totals, delta: computed.append(delta) or real(totals, delta))
    reports = list(training())
    assert len(computed) <= 3 * ROUNDS // 4
    epsilons = [report.epsilon for report in reports]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[-1]


def test_grouped_rounds_check_folder_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Counter[str]()
    real = RunFolder.check
    monkeypatch.setattr("fedpriv.runs.report_groups.GROUP_SECONDS", float("inf"))
    monkeypatch.setattr(RunFolder, "check", lambda folder: looks.update(["check"]) or real(folder))
    run = training(tmp_path / "run")
    looks.clear()
    assert sum(len(reports) for reports in run.in_groups()) == ROUNDS
    assert looks["check"] <= ROUNDS + 8


def test_record_changed_equals_replace() -> None:
    record = Record(3, "gradient", 0, "gaussian", 1.5, "sample", "replace_one", sampling="poisson", rate=0.1)
    copied = record.changed(round=4, attempt=7)
    assert copied == replace(record, round=4, attempt=7)
    assert copied.to_json() == replace(record, round=4, attempt=7).to_json()
    assert record.round == 3


class Holder(nn.Module):
    """A linear layer, and modules and tensors that are None."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2, bias=False))
        self.again = self.inner
        self.nothing = None
        self.register_buffer("empty", None)
        self.register_module("missing", None)


@pytest.mark.parametrize("kind", ["none", "buffer", "frozen"])
def test_changed_constants_finds_nested_constant(kind: str) -> None:
    model = Holder()
    before = checksum_constants(model)
    assert find_changed_constants(model, before) == []
    if kind == "buffer":
        model.inner[0].register_buffer("count", torch.ones(2))
    if kind == "frozen":
        model.inner[0].weight.requires_grad_(False)
    # a constant more than before is a change, whatever its value
    assert bool(find_changed_constants(model, before)) == (kind != "none") == bool(collect_constants(model))
