"""Examples that share numbers in memory, such as sliding windows over one series, are named in a private run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import fedpriv as fp

PRIVATE, OF_CLIENTS = fp.Privacy(epsilon=3), fp.Privacy(epsilon=3, unit="client")
SERIES = torch.arange(70.0) / 70


def warnings(
    *datasets: Dataset, test: Dataset | None = None, privacy: fp.Privacy = PRIVATE, width: int = 6
) -> Sequence[str]:
    clients = fp.make_clients(nn.Linear(width, 1), nn.MSELoss(), [*datasets])
    run = fp.Training(clients, fp.fedavg(0.1), privacy, rounds=1, test=test)
    return [warning for warning in run.warnings if "in memory" in warning]


def targets(n: int) -> Tensor:
    return torch.arange(n).unsqueeze(1) / n


def windows(series: Tensor = SERIES, width: int = 6, step: int = 1, *, forecast: bool = False) -> TensorDataset:
    x = series.unfold(0, width, step)
    if forecast:
        return TensorDataset(x[:-1], series[width:].unsqueeze(1))
    return TensorDataset(x, targets(len(x)))


class Windows(Dataset):
    """A data set of the user's own, as most people write windows."""

    def __init__(self, series: Tensor | np.ndarray, step: int = 1) -> None:
        self.series = series
        self.step = step

    def __len__(self) -> int:
        return (len(self.series) - 6) // self.step

    def __getitem__(self, index: int) -> tuple[Tensor | np.ndarray, Tensor]:
        first = index * self.step
        return self.series[first : first + 6], torch.ones(1)


OVERLAPPING: dict[str, tuple[Callable[[], Dataset], int]] = {
    "windows": (windows, 6),
    "windows and next values": (lambda: windows(forecast=True), 7),
    "windows every third step": (lambda: windows(step=3), 2),
    "windows of a subset": (lambda: Subset(windows(), [0, 1, 2, 20, 40, 60]), 3),
    "windows in two parts": (lambda: ConcatDataset([Subset(WHOLE, range(30)), Subset(WHOLE, range(30, 60))]), 6),
    "windows of two channels": (lambda: TensorDataset(CHANNELS.unfold(0, 3, 1), torch.ones(33, 2, 1)), 3),
    "one row expanded": (lambda: TensorDataset(SERIES[:6].expand(60, 6), targets(60)), 60),
    "custom data set": (lambda: Windows(SERIES), 6),
    "custom data set of arrays": (lambda: Windows(SERIES.numpy()), 6),
    "subset of custom data set": (lambda: Subset(Windows(SERIES), [30, 4, 12, 34]), 2),
}


WHOLE = windows()
CHANNELS = SERIES.view(35, 2)


@pytest.mark.parametrize("name", OVERLAPPING)
def test_shared_numbers_warning_names_group(name: str) -> None:
    """One number in six examples had the epsilon of one example, without a word."""
    make, examples = OVERLAPPING[name]
    dataset = make()
    (text,) = warnings(dataset, width=dataset[0][0].shape[-1])
    assert f"one number can be part of up to {examples} examples" in text
    assert f"--group {examples}" in text
    assert "unit: client" in text
    assert warnings(dataset, privacy=OF_CLIENTS, width=dataset[0][0].shape[-1]) == []
    assert warnings(dataset, privacy=fp.Privacy(noise_on="none"), width=dataset[0][0].shape[-1]) == []


APART: dict[str, Callable[[], Sequence[Dataset]]] = {
    "rows": lambda: [TensorDataset(torch.rand(60, 6), targets(60))],
    "columns": lambda: [TensorDataset(torch.rand(6, 60).T, targets(60))],
    "every second column": lambda: [TensorDataset(torch.rand(60, 12)[:, ::2], targets(60))],
    "every second row": lambda: [TensorDataset(torch.rand(120, 6)[::2], targets(60))],
    "blocks": lambda: [windows(step=6), windows(SERIES.clone(), width=6, step=7)],
    "windows of a subset": lambda: [Subset(windows(), [*range(0, 60, 6)])],
    "one tensor twice": lambda: [(lambda x: TensorDataset(x.expand(60, 6), x))(torch.rand(60, 1))],
    "a column as target": lambda: [(lambda x: TensorDataset(x, x[:, :1]))(torch.rand(60, 6))],
    "equal targets of clients": lambda: [TensorDataset(torch.rand(9, 6), y) for y in [targets(9)] * 3],
    "one target for all": lambda: [TensorDataset(torch.rand(9, 6), torch.ones(1, 1).expand(9, 1))],
    "parts of one table": lambda: [Subset(TABLE, range(20)), Subset(TABLE, range(20, 60))],
    "custom data set": lambda: [Windows(SERIES, step=6)],
    "copies": lambda: [TensorDataset(WHOLE.tensors[0].clone(), targets(65))],
}
TABLE = TensorDataset(torch.rand(60, 6), targets(60))


@pytest.mark.parametrize("name", APART)
def test_disjoint_examples_give_no_warning(name: str) -> None:
    assert warnings(*APART[name]()) == []


def test_numbers_shared_between_clients_warn() -> None:
    """Window 29 of one client and window 30 of the other have five numbers in common."""
    whole = windows()
    parts = Subset(whole, range(30)), Subset(whole, range(30, 65))
    assert "Examples of several clients also share numbers" in warnings(*parts)[0]
    (text,) = warnings(*parts, privacy=OF_CLIENTS)
    assert text.startswith("examples of several clients share numbers")
    cut = windows(SERIES[:35]), windows(SERIES[35:])
    assert "several clients" not in warnings(*cut)[0]
    assert warnings(*cut, privacy=OF_CLIENTS) == []


def test_test_windows_over_training_numbers_raise() -> None:
    whole = windows(forecast=True)
    train = Subset(whole, range(40))
    with pytest.raises(fp.PrivacyError, match="6 test examples share numbers with training examples"):
        warnings(train, test=Subset(whole, range(40, 64)))
    assert warnings(train, test=Subset(whole, range(46, 64)))
    assert warnings(train, test=Subset(whole, range(40, 64)), privacy=fp.Privacy(noise_on="none")) == []


def test_lazy_clients_with_windows_warn() -> None:
    clients = fp.lazy_clients(nn.Linear(6, 1), nn.MSELoss(), lambda _: windows(SERIES.clone()), [65, 65])
    run = fp.Training(clients, fp.fedavg(0.1), PRIVATE, rounds=1)
    assert any("one number can be part of up to 6 examples" in warning for warning in run.warnings)


def test_fit_with_windows_warns() -> None:
    model = nn.Linear(6, 1)
    with pytest.warns(fp.errors.PromiseWarning, match="one number can be part of up to 6 examples"):
        loader = DataLoader(windows(), batch_size=13, shuffle=True)
        fp.fit(model, loader, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), epochs=1, epsilon=3.0)
