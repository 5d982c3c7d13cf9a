"""Runs compute in their own modes of torch, whatever modes surround them and whenever these were set."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.distributed.modes import Modes

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(24, 6, generator=DRAW), torch.arange(24) % 3


class Padded(nn.Module):
    """Makes a tensor of torch's default type, and sums it in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) + torch.full((8,), 0.1))


def make() -> fp.Training:
    torch.manual_seed(1)
    data = TensorDataset(X, Y)
    clients = fp.make_clients(Padded(), nn.CrossEntropyLoss(), [data])
    privacy = fp.Privacy(epsilon=3, relation="add_remove")
    test = TensorDataset(X + 1, Y)
    return fp.Training(clients, fp.fedavg(0.5), privacy, rounds=3, seed=0, secret_seed=1, test=test)


def finish(training: fp.Training) -> tuple[Tensor, float | None]:
    for _ in training:
        pass
    result = training.result()
    return result.params, result.test_loss


@contextmanager
def default_dtype() -> Generator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def coarse_products() -> Generator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


MODES: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "default type": default_dtype,
    "coarse products": coarse_products,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
def test_mode_set_after_setup_same_result(mode: str) -> None:
    expected = finish(make())
    training = make()
    with MODES[mode]():
        found = finish(training)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["autocast", "no gradients"])
def test_mode_around_run_same_result(mode: str) -> None:
    expected = finish(make())
    with MODES[mode]():
        found = finish(make())
    assert torch.equal(found[0], expected[0])


@pytest.mark.filterwarnings("ignore")
def test_code_between_rounds_keeps_modes() -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in make():
            assert not torch.is_grad_enabled()
            assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("mode", MODES)
def test_modes_restored_after_error(mode: str) -> None:
    def state() -> tuple[object, ...]:
        backend = torch.backends.mkldnn
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(),
            backend.is_available(),
        )

    with MODES[mode]():
        before = state(), torch.get_float32_matmul_precision()
        with pytest.raises(ValueError, match="stop"), Modes(torch.float32, full_precision=True).fixed():
            raise ValueError("stop")
        assert (state(), torch.get_float32_matmul_precision()) == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["autocast", "no gradients"])
def test_fit_inside_mode_trains(mode: str) -> None:
    loader = torch.utils.data.DataLoader(TensorDataset(X, Y), 8, shuffle=True)
    model = Padded()
    with MODES[mode]():
        result = fp.fit(
            model, loader, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), epochs=1, epsilon=3
        )
    assert result.rounds == 3
