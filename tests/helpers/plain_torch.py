"""A run without noise and a loop of plain torch, to be compared."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import fedpriv as fp

STEPS = 4
RATE = 0.3


def trained_here(
    model: nn.Module, loss: Any, data: Dataset[Any], *, test: Dataset[Any] | None = None, **options: Any
) -> tuple[fp.Result, list[str]]:
    """The result of some steps of gradient descent without noise, and the warnings."""
    clients = fp.make_clients(model, loss, [data])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fp.train(
            clients, fp.gradient_descent(RATE), fp.Privacy(noise_on="none"), rounds=STEPS, seed=0, test=test, **options
        )
    return result, [str(one.message) for one in caught]


def trained_by_torch(model: nn.Module, losses: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> nn.Module:
    """The same steps on the mean of `losses`, which gives each example's own."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses(model(*inputs) if isinstance(inputs, tuple) else model(inputs), targets).mean().backward()
        optimizer.step()
    return model


def assert_same_parameters(result: fp.Result, model: nn.Module) -> None:
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(result.params, expected, rtol=1e-5, atol=1e-5)


def classes(n: int = 12, features: int = 4, n_classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, features, generator=generator), torch.arange(n) % n_classes


def rows(*tensors: Tensor) -> TensorDataset:
    return TensorDataset(*tensors)


def linear(outputs: int, features: int = 4) -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(features, outputs)


def settings_of(warning: Sequence[str], word: str) -> list[str]:
    return [text for text in warning if word in text]
