"""Where the order of examples is priced, a run is resumed with the data that it began with, or not at all."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fedpriv as fp
from fedpriv.errors import DataError

N_CLIENTS = 3
ORDERED = fp.Privacy(epsilon=2, sampling=fp.Cyclic(2))


def datasets(
    change: Callable[[list[torch.Tensor], list[torch.Tensor]], None] | None = None, n: int = N_CLIENTS
) -> list[Dataset[Any]]:
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(8, 4, generator=generator) for _ in range(n)]
    labels = [torch.randint(2, (8,), generator=generator) for _ in range(n)]
    if change is not None:
        change(inputs, labels)
    return [TensorDataset(x, y) for x, y in zip(inputs, labels, strict=True)]


def another_label(_: list[torch.Tensor], labels: list[torch.Tensor]) -> None:
    labels[1][5] = 1 - labels[1][5]


def another_number(inputs: list[torch.Tensor], _: list[torch.Tensor]) -> None:
    inputs[2][0, 0] += 1e-6


def another_order(inputs: list[torch.Tensor], labels: list[torch.Tensor]) -> None:
    inputs[0], labels[0] = inputs[0].flip(0), labels[0].flip(0)


def clients_exchanged(inputs: list[torch.Tensor], labels: list[torch.Tensor]) -> None:
    inputs[0], inputs[1] = inputs[1], inputs[0]
    labels[0], labels[1] = labels[1], labels[0]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def training(data: Sequence[Dataset[Any]], **options: Any) -> fp.Training:
    clients = fp.make_clients(model(), torch.nn.CrossEntropyLoss(), data)
    return fp.Training(clients, fp.fedavg(0.5), ORDERED, rounds=4, seed=1, **{"checkpoint_every": 1, **options})


def stopped_after(rounds: int, folder: Path, data: Sequence[Dataset[Any]]) -> None:
    run = training(data, folder=folder)
    reports = iter(run)
    for _ in range(rounds):
        next(reports)
    reports.close()
    assert run.folder is not None
    run.folder.close()


def finished(run: fp.Training) -> fp.Result:
    for _ in run:
        pass
    result = run.result()
    if run.folder is not None:
        run.folder.close()
    return result


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("change", [another_label, another_number, another_order, clients_exchanged])
def test_resume_with_changed_data_raises(tmp_path: Path, change: Callable[..., None], rounds: int) -> None:
    if rounds:
        stopped_after(rounds, tmp_path / "run", datasets())
    else:
        first = training(datasets(), folder=tmp_path / "run")
        assert first.folder is not None
        first.folder.close()
    with pytest.raises(DataError, match=r"client \d: its examples changed since the run began"):
        training(datasets(change), folder=tmp_path / "run", resume=True)


def test_resume_with_same_data_completes(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", datasets())
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first = finished(training(datasets(), folder=tmp_path / "run", resume=True))
    second = finished(training(datasets(), folder=tmp_path / "copy", resume=True))
    assert not torch.equal(first.params, second.params), "each has noise of its own"


class RandomView(Dataset[Any]):
    """Examples that are other ones whenever they are read, as random transforms make them."""

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + torch.rand(()) + random.random(), y


def test_randomly_transformed_data_recognised(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", [RandomView(data) for data in datasets()])
    torch.manual_seed(99)
    random.seed(99)
    result = finished(training([RandomView(data) for data in datasets()], folder=tmp_path / "run", resume=True))
    assert result.rounds == 4
    stopped_after(2, tmp_path / "other", [RandomView(data) for data in datasets()])
    with pytest.raises(DataError, match="client 1"):
        training([RandomView(data) for data in datasets(another_label)], folder=tmp_path / "other", resume=True)


N_LAZY = 40  # of so many only some are looked at before a run


def lazily(data: Sequence[Dataset[Any]], folder: Path, *, resume: bool = False) -> fp.Training:
    clients = fp.lazy_clients(model(), torch.nn.CrossEntropyLoss(), lambda i: data[i], [8] * N_LAZY)
    return fp.Training(
        clients,
        fp.fedavg(0.5),
        fp.Privacy(epsilon=2, unit="client", trust=fp.Central(cohort_rounds=2)),
        rounds=4,
        seed=1,
        folder=folder,
        resume=resume,
        checkpoint_every=1,
    )


def stopped_lazily(folder: Path, data: Sequence[Dataset[Any]]) -> None:
    run = lazily(data, folder)
    assert not run.population.is_in_memory
    reports = iter(run)
    next(reports)
    next(reports)  # the checkpoint of the first round is written
    reports.close()
    assert run.folder is not None
    run.folder.close()


@pytest.mark.parametrize("view", [lambda data: data, lambda data: RandomView(data)], ids=["fixed", "random views"])
def test_lazy_data_compared_when_drawn(tmp_path: Path, view: Callable[..., Any]) -> None:
    stopped_lazily(tmp_path / "run", [view(data) for data in datasets(n=N_LAZY)])
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    torch.manual_seed(99)
    random.seed(99)
    assert finished(lazily([view(data) for data in datasets(n=N_LAZY)], tmp_path / "run", resume=True)).rounds == 4
    changed = lazily([view(data) for data in datasets(another_label, N_LAZY)], tmp_path / "copy", resume=True)
    with pytest.raises(DataError, match=r"client \d+: its examples changed since the run began"):
        for _ in changed:  # the epochs to come draw each client
            pass


def test_checkpoint_data_digests_keyed(tmp_path: Path) -> None:
    """Equal examples have different digests in two runs."""
    digests = []
    for name in ("one", "two"):
        stopped_after(1, tmp_path / name, datasets())
        saved = torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        digests.append(saved["data"]["digests"])
    assert digests[0].shape == (N_CLIENTS, 16)
    assert not torch.equal(*digests)
