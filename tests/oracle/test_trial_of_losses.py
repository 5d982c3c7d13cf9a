"""Losses that mix or remember examples are refused before a run begins, by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from trial_models import CLASSES, FEATURES, clients, start

import fedpriv as fp
from fedpriv import models
from fedpriv.clients.batch import Batch
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.clipping import Clip


def less_the_mean(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = models.cross_entropy(outputs, labels)
    return 100 * (losses - losses.mean())


def same_value_other_gradient(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = models.cross_entropy(outputs, labels)
    return losses + 50 * (outputs.mean() - outputs.mean().detach())


def one_number(outputs: Tensor, labels: Tensor) -> Tensor:
    return models.cross_entropy(outputs, labels).mean()


@pytest.mark.parametrize("form", [less_the_mean, same_value_other_gradient, one_number])
def test_mixing_per_example_loss_raises_with_name(form) -> None:
    for backend in ("linear", "vmap"):
        made = clients(models.SoftmaxRegression(FEATURES, CLASSES), models.Loss(form))
        with pytest.raises(fp.ConfigError, match=rf"^loss = 'Loss': its per-example form {form.__name__} "):
            fp.Training(made, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1, compute=fp.Compute(backend))


def test_mixing_loss_bounded_and_raises() -> None:
    """In a batch, one of 100 examples would change the clipped sum by over 100; two clipped gradients differ by 2."""
    torch.manual_seed(0)
    model, x, y = (
        models.SoftmaxRegression(FEATURES, CLASSES),
        1 + 0.1 * torch.randn(1, 100, FEATURES),
        torch.zeros(1, 100).long(),
    )
    batch = Batch(torch.zeros(1, dtype=torch.long), x, y, torch.ones(1, 100, dtype=torch.bool))
    neighbour = Batch(batch.rows, x.clone(), y, batch.mask)
    batch.inputs[0, 0], neighbour.inputs[0, 0] = 1e4, -1e4

    def towards_the_mean(outputs: Tensor, labels: Tensor) -> Tensor:
        return 100 * models.cross_entropy(outputs, labels) * outputs.detach().mean().tanh()

    linear, row = BACKENDS["linear"](model, models.Loss(towards_the_mean)), torch.ones(1, FEATURES * CLASSES)
    one, other = (linear.clipped_sum(row, b, Clip(1.0))[0] for b in (batch, neighbour))
    assert float((one - other).norm()) <= 2.01
    with pytest.raises(fp.ConfigError, match="its per-example form towards_the_mean"):
        start(model, models.Loss(towards_the_mean))


def test_stateful_loss_raises() -> None:
    seen: list[Tensor] = []

    def drifting(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(outputs.detach().mean())
        return nn.functional.cross_entropy(outputs, labels) * (1 + len(seen))

    with pytest.raises(fp.ConfigError, match=r"^loss = 'drifting': returns different values for the same example"):
        start(nn.Linear(FEATURES, CLASSES), drifting)


def test_loss_with_several_values_raises() -> None:
    with pytest.raises(fp.ConfigError, match=r"^loss = 'MSELoss': returns 3 numbers for one example"):
        start(nn.Linear(FEATURES, CLASSES), nn.MSELoss(reduction="none"), y=torch.rand(12, CLASSES))


def test_loss_without_trainable_parameters_raises() -> None:
    class Unused(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(fp.ConfigError, match=r"^model = 'Unused': no trainable parameter affects the loss"):
        start(Unused(FEATURES, CLASSES))


def smaller_with_large_scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses of single examples, unless one has scores such as no made-up example has."""
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return losses * torch.where(outputs.detach().abs().max() > 50, 0.01, 1.0)


@pytest.mark.parametrize("backend", ["linear", "ghost", "vmap", "loop"])
def test_custom_per_example_loss_called_alone(backend: str) -> None:
    """Tests with synthetic values cannot find how the loss combines other examples."""
    inputs = torch.ones(1, 5, 4) * torch.tensor([1.0, 2.0, 3.0, 4.0, 1000.0])[:, None]
    batch = Batch(torch.arange(1), inputs, torch.tensor([[0, 1, 0, 1, 0]]), torch.ones(1, 5, dtype=torch.bool))
    params = torch.linspace(-1, 1, 8).unsqueeze(0)
    computed = BACKENDS[backend](nn.Linear(4, 2, bias=False), models.Loss(smaller_with_large_scores))
    clip = Clip(0.5)
    everyone, _ = computed.clipped_sum(params, batch, clip)
    alone = [computed.clipped_sum(params, batch.piece(slice(0, 1), slice(i, i + 1)), clip)[0] for i in range(5)]
    torch.testing.assert_close(everyone, torch.stack(alone).sum(0), rtol=1e-5, atol=1e-6)
