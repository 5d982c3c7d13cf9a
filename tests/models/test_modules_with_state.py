"""Modules that keep computed tensors, ask for gradients in their forward pass, or normalise without statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv import models
from fedpriv.models.copies import copy_module

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(24, 6, generator=DRAW), torch.arange(24) % 3


class KeepsMap(nn.Module):
    """Keeps its newest outputs, as attention layers keep a map for a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.map, self.maps = nn.Linear(6, 3), None, {}

    def forward(self, x: Tensor) -> Tensor:
        self.map = self.layer(x)
        self.maps = {"newest": [self.map]}
        return self.map


class Slope(nn.Module):
    """Its outputs hold a gradient in its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 8), nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            if not x.requires_grad:
                x = x.requires_grad_()
            energy = torch.tanh(self.layer(x)).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return self.head(torch.cat([torch.tanh(self.layer(x)), slope], 1))


def kept_map() -> nn.Module:
    model = KeepsMap()
    model(X)
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: nn.Sequential(weight_norm(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 3)),
    "spectral_norm": lambda: nn.Sequential(spectral_norm(nn.Linear(6, 4)), nn.Linear(4, 3)),
    "prune": lambda: nn.Sequential(prune.l1_unstructured(nn.Linear(6, 4), "weight", amount=0.5), nn.Linear(4, 3)),
    "kept map": kept_map,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_module_with_computed_tensors_trains(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind]()
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), [TensorDataset(X, Y)])
    test = TensorDataset(X + 1, Y)
    privacy = fp.Privacy(epsilon=1e6, clip=fp.Clip(100.0))
    result = fp.train(clients, fp.fedavg(0.3), privacy, rounds=3, test=test, secret_seed=0, seed=0)
    # by plain torch: with noise that is next to nothing, the same full-batch steps
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    if kind != "spectral_norm":  # its power iteration starts anew in each pass of a run
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()
            optimizer.step()
        assert result.test_loss == pytest.approx(float(nn.functional.cross_entropy(model(X + 1), Y)), rel=1e-2)
    copy_module(result.model)(X)


def test_copied_module_shares_no_values() -> None:
    model = kept_map()
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)
    copied = copy_module(model)
    assert torch.equal(copied.map, model.map)
    assert not copied.map.requires_grad
    assert copied.map is copied.maps["newest"][0]
    assert copied.layer.weight is not model.layer.weight


def test_uncopyable_module_raises_with_path() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    model[1].lines = (line for line in "ab")
    with pytest.raises(fp.ConfigError, match=r"^model\.1 = 'Tanh': cannot be copied"):
        fp.make_clients(model, nn.CrossEntropyLoss(), [TensorDataset(X, Y)])


@pytest.mark.filterwarnings("ignore")
def test_gradient_in_forward_pass_trains() -> None:
    torch.manual_seed(0)
    clients = fp.make_clients(Slope(), nn.CrossEntropyLoss(), [TensorDataset(X, Y)])
    result = fp.train(clients, fp.fedavg(0.3), fp.Privacy(epsilon=3), rounds=2, test=TensorDataset(X + 1, Y))
    assert result.test_loss is not None


@pytest.mark.filterwarnings("ignore")
def test_bool_labels_train() -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), labels.float())

    data = TensorDataset(X, Y > 0)
    clients = fp.make_clients(nn.Linear(6, 1), loss, [data])
    result = fp.train(clients, fp.fedavg(0.3), fp.Privacy(epsilon=3), rounds=2, test=TensorDataset(X + 1, Y > 0))
    assert result.test_loss is not None


def test_batch_norm_without_statistics_error_omits_eval() -> None:
    layer = nn.BatchNorm1d(4, track_running_stats=False).eval()
    with pytest.raises(fp.ConfigError, match=r"\.eval\(\) would not change this: replace it by a GroupNorm"):
        models.validate_model(nn.Sequential(nn.Linear(6, 4), layer))


def test_non_private_batch_norm_raises() -> None:
    clients = fp.make_clients(
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), nn.CrossEntropyLoss(), [TensorDataset(X, Y)]
    )
    with pytest.raises(fp.ConfigError, match="computes each example alone, with and without privacy"):
        fp.train(clients, fp.fedavg(0.3), fp.Privacy(noise_on="none"), rounds=1)
