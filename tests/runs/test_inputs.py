"""Unusable data, losses, schedules or settings of a user raise one-line errors that name them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.privacy.schedules import Custom

X = torch.arange(60.0).reshape(20, 3) / 60
Y = torch.arange(20) % 2
CROSS_ENTROPY = nn.CrossEntropyLoss()


def train(
    x: Tensor = X,
    y: Tensor = Y,
    *,
    loss: nn.Module = CROSS_ENTROPY,
    rounds: Any = 1,
    test: Dataset | None = None,
    schedule: Any = None,
    **compute: Any,
) -> fp.Result:
    """Two clients with ten examples each."""
    data = [TensorDataset(x[:10], y[:10]), TensorDataset(x[10:], y[10:])]
    clients = fp.make_clients(SoftmaxRegression(3, 2), loss, data)
    privacy = fp.Privacy(noise_multiplier=3.0, **({"schedule": schedule} if schedule else {}))
    return fp.train(clients, fp.fedavg(1.0), privacy, rounds=rounds, test=test, compute=fp.Compute(**compute))


def with_label(value: float, y: Tensor = Y) -> Tensor:
    y = y.clone()
    y[13] = value
    return y


@pytest.mark.parametrize(
    ("y", "loss", "said"),
    [
        (with_label(2), CROSS_ENTROPY, "client 1 has label 2, which model and loss do not accept"),
        (with_label(-1), CROSS_ENTROPY, "client 1 has label -1, which model and loss do not accept"),
        (with_label(10**12), CROSS_ENTROPY, "client 1 has label 1000000000000, which"),
        (with_label(-100), CROSS_ENTROPY, "client 1 has label -100, which the loss ignores"),
        (with_label(-100), nn.CrossEntropyLoss(reduction="sum"), "client 1 has label -100, which the loss ignores"),
        (Y + 0.5, CROSS_ENTROPY, r"targets of type torch.float32, and the loss needs class numbers"),
        (Y.bool(), CROSS_ENTROPY, r"targets of type torch.bool, and the loss needs class numbers"),
        (with_label(torch.nan, Y.double()), nn.MSELoss(), "client 1: target 3 is not finite"),
    ],
)
def test_invalid_label_error_names_client_and_value(y: Tensor, loss: nn.Module, said: str) -> None:
    with pytest.raises(fp.DataError, match=said):
        train(y=y, loss=loss)


def test_empty_data_set_error_names_index() -> None:
    datasets = [TensorDataset(torch.rand(n, 2), torch.zeros(n).long()) for n in (3, 0, 2)]
    with pytest.raises(fp.DataError, match=r"^datasets\[1\]: a client has no examples: remove this client, or give it"):
        fp.make_clients(nn.Linear(2, 2), CROSS_ENTROPY, datasets)


def test_integer_label_types_accepted() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int32):
        assert train(y=Y.to(dtype)).rounds == 1


def test_negative_labels_accepted_by_loss_train() -> None:
    class Hinge(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (1 - targets * outputs[:, 0]).clamp_min(0).mean()

    for negative in (-1, -100):
        assert train(y=Y.where(Y == 1, negative), loss=Hinge()).rounds == 1


def test_class_with_infinite_loss_accepted() -> None:
    """A bad model may have an infinite loss; such examples count as broken, and their label is valid."""

    class InfiniteFor0(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(outputs, targets) / targets.min()

    assert train(y=Y, loss=InfiniteFor0()).rounds == 1


class Broken(Dataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise OSError("the file is gone")


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (
            TensorDataset(X + 5, Y + 5),
            "cannot process a test example of shape .3,. and target [56] .*Target [56] is out of bounds",
        ),
        (TensorDataset(X + 5, Y.float()), "cannot process a test example of shape .3,. and target 0.0"),
        (TensorDataset(X[:, :2] + 5, Y), "cannot process a test example of shape .2,. and target 0"),
        (TensorDataset(X * torch.nan, Y), "input 0 is not finite"),
        (TensorDataset(X + 5), "the test data cannot be read"),
        (Broken(), "the test data cannot be read .OSError: the file is gone"),
    ],
)
def test_unusable_test_data_raise_before_first_round(test: Dataset, said: str) -> None:
    with pytest.raises(fp.DataError, match=said):
        train(test=test)


def test_different_client_data_error_names_client() -> None:
    def clients(x: Tensor, y: Tensor) -> list[fp.Client]:
        return fp.make_clients(
            SoftmaxRegression(3, 2), CROSS_ENTROPY, [TensorDataset(X[:10], Y[:10]), TensorDataset(x, y)]
        )

    for x, y, said in (
        (X[10:, :2], Y[10:], r"client 1 has inputs of shape \(2,\)"),
        (X[10:].int(), Y[10:], "client 1 has inputs of shape .* type torch.int32"),
        (X[10:], Y[10:].float(), "client 1 has targets of shape .* type torch.float32"),
    ):
        with pytest.raises(fp.DataError, match=said):
            fp.train(clients(x, y), fp.fedavg(1.0), fp.Privacy(noise_multiplier=3.0), rounds=1)


@pytest.mark.parametrize(
    ("field", "value"),
    # without max_physical_batch_size a value is chosen
    [("rounds", None), *product(("max_physical_batch_size", "rounds"), (0, -1, 2.5, True, "3", float("nan")))],
)
def test_non_integer_count_raises(field: str, value: object) -> None:
    with pytest.raises(fp.ConfigError, match=rf"{field} = "):
        train(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("device", "meta"), ("device", "gpu"), ("device", "cuda:99"), ("dtype", "float16"), ("dtype", torch.float64)],
)
def test_unusable_device_or_dtype_raises(field: str, value: object) -> None:
    with pytest.raises(fp.ConfigError, match=rf"compute.{field} = "):
        train(**{field: value})


def test_unusable_default_device_raises() -> None:
    with (
        torch.device("meta"),
        pytest.raises(fp.ConfigError, match=r"^torch\.get_default_device\(\) = 'meta': .*Compute"),
    ):
        fp.Compute(device="cpu").start()


def raises(_: int) -> float:
    raise KeyError("a")


@pytest.mark.parametrize(
    "share",
    [raises, *(lambda _, found=found: found for found in (None, "1", True, 1j, [1.0], 0, -1.0, 10**400, 1e-300))],
)
def test_invalid_schedule_share_raises(share: Callable[[int], Any]) -> None:
    with pytest.raises(fp.ConfigError, match=r"privacy.schedule.function = .*round 0"):
        train(schedule=Custom(share))
