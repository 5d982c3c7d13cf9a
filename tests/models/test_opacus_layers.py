"""Opacus' own layers and wrappers: its layers train as they are, with Opacus' gradients; its wrappers are refused."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

import fedpriv
from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import build_backend
from fedpriv.privacy.clipping import Clip

opacus = pytest.importorskip("opacus")
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention  # noqa: E402 - after the check that it is there

EXAMPLES, STEPS, FEATURES, CLASSES = 12, 5, 4, 3


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Linear(FEATURES, 6), DPMultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(self.layer(h, h, h)[0].mean(1))


MODELS = {
    "DPLSTM": lambda: Recurrent(DPLSTM(FEATURES, 6, batch_first=True)),
    "DPGRU": lambda: Recurrent(DPGRU(FEATURES, 6, batch_first=True)),
    "DPMultiheadAttention": Attention,
}


def model_and_data(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return MODELS[name]().double(), torch.randn(EXAMPLES, STEPS, FEATURES).double(), torch.arange(EXAMPLES) % CLASSES


@pytest.mark.parametrize("backend", ["ghost", "loop"])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_match_opacus(name: str, backend: Literal["ghost", "loop"]):
    model, x, y = model_and_data(name)
    bound = 0.3
    params = nn.utils.parameters_to_vector(model.parameters()).detach().unsqueeze(0)
    batch = Batch(torch.tensor([0]), x.unsqueeze(0), y.unsqueeze(0), torch.ones(1, EXAMPLES, dtype=torch.bool))
    chosen = build_backend(backend, model, nn.CrossEntropyLoss())
    sums, broken = chosen.clipped_sum(params, batch, Clip(bound))
    assert int(broken.sum()) == 0

    wrapped = opacus.GradSampleModule(model, batch_first=True)
    nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    gradients = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], 1) * 1.0
    # GradSampleModule's loss reduction is the mean: it multiplies by the number of examples
    gradients = gradients / EXAMPLES
    norms = gradients.norm(dim=1, keepdim=True)
    assert bool((norms > bound).any()), "nothing would be clipped"
    expected = (gradients * (bound / norms).clamp(max=1)).sum(0)
    torch.testing.assert_close(sums[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_opacus_layers_train_unchanged(name: str):
    model, x, y = model_and_data(name)
    model = model.float()
    loader = DataLoader(TensorDataset(x.float(), y), batch_size=4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    result = fedpriv.fit(model, loader, nn.CrossEntropyLoss(), optimizer, epochs=1, epsilon=3.0)
    assert result.measures["backend"]["name"] == "ghost"
    assert result.spent.epsilon <= 3.0


def test_opacus_wrappers_raise_with_fix():
    data = TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    model = nn.Linear(4, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=5)
    wrapped, noisy, _ = opacus.PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    usual: dict[str, Any] = {"epochs": 1, "epsilon": 1.0}
    with pytest.raises(fedpriv.ConfigError, match=r"GradSampleModule.*to_standard_module"):
        fedpriv.fit(wrapped, loader, nn.CrossEntropyLoss(), optimizer, **usual)
    with pytest.raises(fedpriv.ConfigError, match=r"DPOptimizer.*before make_private"):
        fedpriv.fit(model, loader, nn.CrossEntropyLoss(), noisy, **usual)
    with pytest.raises(fedpriv.ConfigError, match="GradSampleModule"):
        fedpriv.models.validate_model(wrapped)


class Threshold(torch.autograd.Function):
    """A rule that torch cannot batch: without `setup_context` and a rule for vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] * weight, (gradients[0] * x).sum(0)


class OwnScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return Threshold.apply(x, self.weight)


def summed(model: nn.Module, x: Tensor, y: Tensor, bound: float) -> tuple[str, Tensor]:
    """The backend that `auto` takes, and its clipped sum."""
    loader = DataLoader(TensorDataset(x, y))
    population = Population([fedpriv.Client(model, nn.CrossEntropyLoss(), loader)], torch.device("cpu"), x.dtype)
    selected = select_backend("auto", population)
    rows = torch.ones(1, len(x), dtype=torch.bool)
    batch = Batch(torch.tensor([0]), x.unsqueeze(0), y.unsqueeze(0), rows)
    return selected.name, selected.backend.clipped_sum(population.params, batch, Clip(bound))[0][0]


def summed_by_opacus(model: nn.Module, x: Tensor, y: Tensor, bound: float) -> Tensor:
    wrapped = opacus.GradSampleModule(model, loss_reduction="sum", strict=False)
    nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    gradients = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], 1)
    return (gradients * (bound / gradients.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)


def test_opacus_registered_layer_matches_loop():
    """Its gradient sampler is registered with Opacus; plain autograd gives the same sums, one example at a time."""

    @opacus.grad_sample.register_grad_sampler(OwnScale)
    def sampler(layer: OwnScale, activations: list[Tensor], backprops: Tensor) -> dict[nn.Parameter, Tensor]:
        return {layer.weight: backprops * activations[0]}

    torch.manual_seed(0)
    model = nn.Sequential(OwnScale(), nn.Linear(FEATURES, CLASSES)).double()
    x, y = torch.randn(EXAMPLES, FEATURES).double(), torch.arange(EXAMPLES) % CLASSES
    name, sums = summed(model, x, y, 0.3)
    assert name == "loop"
    torch.testing.assert_close(sums, summed_by_opacus(copy.deepcopy(model), x, y, 0.3), rtol=1e-6, atol=1e-9)


class SpreadsLargeOnes(nn.Module):
    """Examples mix only where one of them is large, as made-up examples are not."""

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 50:
            return x + x.mean(0, keepdim=True)
        return x


def test_mixing_layer_sensitivity_bounded_without_hooks():
    """With hooks, as in `GradSampleModule`, the influence of an example exceeds the clip bound; here it does not."""
    bound = 0.3
    torch.manual_seed(0)
    model = nn.Sequential(SpreadsLargeOnes(), nn.Linear(FEATURES, CLASSES)).double()
    x, y = torch.randn(EXAMPLES, FEATURES).double(), torch.arange(EXAMPLES) % CLASSES
    neighbour = x.clone()
    neighbour[0] *= 1000
    moved = [summed_by_opacus(copy.deepcopy(model), rows, y, bound) for rows in (x, neighbour)]
    assert (moved[1] - moved[0]).norm() > 1.5 * 2 * bound
    _, first = summed(model, x, y, bound)
    _, second = summed(model, neighbour, y, bound)
    assert (second - first).norm() <= 2 * bound
