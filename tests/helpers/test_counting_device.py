"""The pretend device counts what is known to happen on a real one, and refuses what a real one refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from counting_device import DEVICE, CountingDevice, OnDevice
from torch import Tensor, nn
from torch.func import grad, vmap

KNOWN: dict[str, tuple[Callable[[Tensor], object], tuple[int, int, int]]] = {
    "arithmetic": (lambda x: x * 2 + 1, (2, 0, 0)),
    "in place": (lambda x: x.mul_(2).add_(1), (2, 0, 0)),
    "a view": (lambda x: x[0].unsqueeze(1).T.expand(5, -1).detach(), (0, 0, 0)),
    "memory alone": (lambda x: torch.empty(4, device=DEVICE), (0, 0, 0)),
    "zeros": (lambda x: torch.zeros(4, device=DEVICE), (1, 0, 0)),
    "a matrix product": (lambda x: x @ x.T, (1, 0, 0)),
    "another type": (lambda x: x.double(), (1, 0, 0)),
    "an upload": (lambda x: torch.ones(4).to(DEVICE), (0, 1, 0)),
    "an upload into a tensor": (lambda x: x.copy_(torch.ones(3, 4)), (0, 1, 0)),
    "numbers": (lambda x: torch.tensor([1.0, 2.0], device=DEVICE), (0, 1, 0)),
    "numbers like others": (lambda x: x.new_tensor([1.0]), (0, 1, 0)),
    "an index on the processor": (lambda x: x[torch.tensor([0, 2])], (1, 1, 0)),
    "a list as index": (lambda x: x[[0, 2]], (1, 1, 0)),
    "index on the device": (lambda x: x.index_select(0, torch.zeros(2, dtype=torch.long, device=DEVICE)), (2, 0, 0)),
    "a number": (lambda x: x.sum().item(), (1, 0, 1)),
    "a question": (lambda x: bool((x > 0).all()), (2, 0, 1)),
    "a list": (lambda x: x.tolist(), (0, 0, 1)),
    "a copy back": (lambda x: x.cpu(), (0, 0, 1)),
    "a copy back into a tensor": (lambda x: torch.empty(3, 4).copy_(x), (0, 0, 1)),
    "equality": (lambda x: torch.equal(x, x.clone()), (2, 0, 1)),
    "places": (lambda x: (x > 0).nonzero(), (2, 0, 1)),
    "chosen by flags": (lambda x: x[x > 0], (2, 0, 1)),
    "filled by flags": (lambda x: x.masked_fill_(x > 0, 1), (2, 0, 0)),
    "many at once": (vmap(lambda row: row.sin().sum()), (2, 0, 0)),
    "gradients of many": (lambda x: vmap(grad(lambda row: (row * row).sum()))(x), (6, 0, 0)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_counting_device_counts_known_operations(name: str) -> None:
    does, wanted = KNOWN[name]
    with CountingDevice() as device:
        x = torch.randn(3, 4).to(DEVICE)
        before = device.counts.copy()
        does(x)
        found = device.counts - before
    assert found.numbers == wanted, found.where


def test_counting_device_ignores_cpu_operations() -> None:
    with CountingDevice() as device:
        x = torch.randn(3, 4)
        assert (x @ x.T).sum().item() == pytest.approx(x.sum(0).square().sum().item(), abs=1e-3)
        x[x > 0].tolist()
    assert device.counts.numbers == (0, 0, 0)


@pytest.mark.parametrize(
    "does",
    [
        lambda x: x + torch.ones(3, 4),
        lambda x: torch.cat([x, torch.ones(1, 4)]),
        lambda x: torch.ones(2, 3) @ x,
        lambda x: x.index_select(0, torch.tensor([1])),
        lambda x: x.add_(torch.ones(4)),
        lambda x: x.hypot(torch.tensor(1.0)),
        lambda x: x.clamp(torch.tensor(1.0)),
    ],
)
def test_counting_device_mixed_devices_raise(does: Callable[[Tensor], object]) -> None:
    with CountingDevice():
        x = torch.randn(3, 4).to(DEVICE)
        with pytest.raises(RuntimeError, match="two devices"):
            does(x)
        assert (x + torch.tensor(1.0)).device == DEVICE  # a number may come from anywhere
        with pytest.raises(RuntimeError):
            x.numpy()


def test_counting_device_values_match_cpu() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), torch.randn(5, 4)
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    with CountingDevice() as device:
        there = model.to(DEVICE)
        found = torch.autograd.grad(there(x.to(DEVICE)).sum(), list(there.parameters()))
        assert all(isinstance(gradient, OnDevice) for gradient in found)
        for gradient, same in zip(found, wanted, strict=True):
            assert torch.equal(gradient.cpu(), same)
    assert device.counts.uploads == 5


def test_counting_device_use_outside_block_raises() -> None:
    with CountingDevice():
        x = torch.randn(3, 4).to(DEVICE)
    with pytest.raises(RuntimeError, match="gone"):
        x + 1
