"""Which backend serves which model."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from backend_cases import CASES, cnn
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError
from fedpriv.models import LinearSVM, MnistCNN, SoftmaxRegression
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import BACKENDS, build_backend
from fedpriv.oracle.backends.linear import LinearBackend
from fedpriv.oracle.validation import synthetic_points


class Scaled(nn.Module):
    """Looks linear, but is not one layer on the flattened input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x.flatten(1))


class Branching(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) if x.sum() > 0 else x


class Unused(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(start_dim=1))


class Twice(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.flatten(x, 1)) + self.layer(x.flatten(1))


class Explicit(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.flatten(x, 1, -1))


class Keyword(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(start_dim=1, end_dim=-1))


LINEAR = [
    Explicit(),
    Keyword(),
    nn.Linear(4, 2),
    nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(4, 2)),
    SoftmaxRegression(16, 3),
]
LINEAR += [LinearSVM(16, 3), LinearSVM(16), *(case.model for case in CASES if "linear" in case.backends)]
OTHER = [cnn(), MnistCNN(), Scaled(), Branching(), Unused(), Twice(), nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))]
OTHER += [nn.Sequential(nn.Dropout(), nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 2), nn.Tanh()), nn.Flatten()]
OTHER += [nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), nn.Bilinear(2, 2, 2)]


@pytest.mark.parametrize("model", LINEAR)
def test_auto_chooses_linear_for_linear_models(model: nn.Module) -> None:
    assert LinearBackend.supports(model)
    assert type(build_backend("auto", model, nn.CrossEntropyLoss())) is BACKENDS["linear"]


@pytest.mark.parametrize("model", OTHER)
def test_auto_chooses_ghost_for_other_models(model: nn.Module) -> None:
    assert type(build_backend("auto", model, nn.CrossEntropyLoss())) is BACKENDS["ghost"]


def test_linear_with_unsupported_model_raises() -> None:
    with pytest.raises(ConfigError, match=r"one nn.Linear.*MnistCNN; use 'auto'"):
        build_backend("linear", MnistCNN(), nn.CrossEntropyLoss())


def test_unknown_backend_error_lists_names() -> None:
    with pytest.raises(ConfigError, match=r"'auto' or one of .*loop"):
        build_backend(cast(Any, "fast"), nn.Linear(2, 2), nn.CrossEntropyLoss())


def test_relu_kink_keeps_ghost_backend() -> None:
    """Inputs of a ReLU near zero round differently alone and in a batch, so float32 gradients differ there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 3))
    data = TensorDataset(torch.randn(6, 512), torch.arange(6) % 3)

    def population() -> Population:
        return Population(fp.make_clients(model, nn.CrossEntropyLoss(), [data]))

    # the point at which backends are compared is moved a little: put its first example on the kinks of all units
    row, x, _ = synthetic_points(population())[0]
    moved = population().layout.unflatten(row)
    on_the_kink = -(x[0].double() @ moved["0.weight"].double().T).float()
    with torch.no_grad():
        model[0].bias += on_the_kink - moved["0.bias"]
    assert select_backend("auto", population()).name == "ghost"


class ReadsValue(nn.Linear):
    """What torch.func.vmap cannot batch: it reads a value."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * float((input.detach() == input.detach()).all().item())


@pytest.mark.filterwarnings("ignore:this model's gradients")
def test_result_reports_backend_and_reason() -> None:
    def backend_of(model: nn.Module) -> dict[str, str]:
        data = [TensorDataset(torch.randn(6, 4), torch.arange(6) % 2) for _ in range(2)]
        clients = fp.make_clients(model, nn.CrossEntropyLoss(), data)
        return fp.train(clients, fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0), rounds=1).to_json()["backend"]

    assert backend_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))) == {"name": "ghost"}
    slow = backend_of(ReadsValue(4, 2))
    assert slow["name"] == "loop"
    assert slow["refused"].startswith("not ghost: ")
