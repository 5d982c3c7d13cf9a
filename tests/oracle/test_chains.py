"""Models of linear layers and activations: which models count as chains, and that their gradients are correct."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.oracle.backends.chains import find_chain
from fedpriv.oracle.backends.ghost import GhostBackend
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.backends.precision import Bfloat16
from fedpriv.privacy.clipping import Clip

FEATURES, CLASSES, EXAMPLES = 6, 3, 5


class ForwardModel(nn.Module):
    """A network as most users write it."""

    def __init__(self, forward: Callable[[ForwardModel, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES, bias=False)
        self.act = nn.ReLU(inplace=True)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


CHAINS: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Linear(FEATURES, CLASSES),
    "sequential": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, CLASSES)
    ),
    "activation last": lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, CLASSES), nn.Sigmoid()),
    "two layers without one": lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)),
    "methods": lambda: ForwardModel(lambda net, x: net.second(net.first(x.flatten(1)).relu())),
    "functions": lambda: ForwardModel(
        lambda net, x: net.second(functional.relu(net.first(torch.flatten(x, 1)), inplace=True))
    ),
    "modules": lambda: ForwardModel(lambda net, x: net.second(net.act(net.first(x)))),
}


def without_gradient(net: ForwardModel, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = net.first(x)
    return net.second(torch.relu(hidden))


def in_bfloat16(net: ForwardModel, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return net.second(torch.relu(net.first(x))).float()


def frozen() -> nn.Module:
    model = CHAINS["modules"]()
    model.get_parameter("first.bias").requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = CHAINS["modules"]()
    model.get_submodule("first").register_forward_hook(lambda layer, inputs, output: output * 2)
    return model


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def bias_first() -> nn.Module:
    layer = nn.Linear(FEATURES, CLASSES)
    weight = layer.weight
    del layer.weight
    layer.weight = weight
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight"]
    return layer


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "another operation": lambda: ForwardModel(lambda net, x: net.second(torch.relu(net.first(x)) + 1)),
    "a second use": lambda: ForwardModel(
        lambda net, x: net.second(torch.relu(h) + h if (h := net.first(x)) is not None else x)
    ),
    "an operation before": lambda: ForwardModel(lambda net, x: net.second(torch.relu(net.first(torch.tanh(x))))),
    "a layer less": lambda: ForwardModel(lambda net, x: net.first(x)),
    "another activation": lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.GELU(), nn.Linear(4, CLASSES)),
    "dropout": lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.Dropout(), nn.Linear(4, CLASSES)),
    "a batch norm": lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)),
    "no gradient": lambda: ForwardModel(without_gradient),
    "its own autocast": lambda: ForwardModel(in_bfloat16),
    "the run's autocast": lambda: Bfloat16(CHAINS["sequential"]()),
    "frozen": frozen,
    "hooked": hooked,
    "tied": tied,
    "a bias before its weight": bias_first,
    "normed weights": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES))),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("clip", [Clip(0.3), Clip(0.3, "l1"), Clip(1e3)], ids=str)
@pytest.mark.parametrize("clients", [1, 3])
def test_chain_sums_match_loop(name: str, clip: Clip, clients: int) -> None:
    torch.manual_seed(0)
    model = CHAINS[name]().double()
    assert find_chain(model) is not None
    row = Layout.of(model).row_of(model)
    x = torch.randn(clients, EXAMPLES, FEATURES, dtype=torch.float64)
    mask = torch.rand(clients, EXAMPLES) < 0.8
    batch = Batch(torch.arange(clients), x, torch.randint(0, CLASSES, (clients, EXAMPLES)), mask)
    rows = row.expand(clients, -1)
    sums, broken = GhostBackend(model, nn.CrossEntropyLoss()).clipped_sum(rows, batch, clip)
    expected, _ = LoopBackend(model, nn.CrossEntropyLoss()).clipped_sum(rows, batch, clip)
    torch.testing.assert_close(sums, expected, rtol=1e-9, atol=1e-12)
    assert not broken.any()


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_have_no_chain(name: str) -> None:
    assert find_chain(OTHERS[name]()) is None


def test_nonfinite_example_adds_nothing_bitwise() -> None:
    torch.manual_seed(0)
    model = CHAINS["sequential"]()
    row = Layout.of(model).row_of(model).unsqueeze(0)
    backend = GhostBackend(model, nn.CrossEntropyLoss())
    x, y = torch.randn(1, EXAMPLES, FEATURES), torch.randint(0, CLASSES, (1, EXAMPLES))
    mask = torch.ones(1, EXAMPLES, dtype=torch.bool)
    x[0, 2] = torch.nan
    sums, broken = backend.clipped_sum(row, Batch(torch.arange(1), x, y, mask), Clip(0.3))
    x[0, 2] = 0
    mask[0, 2] = False
    without, _ = backend.clipped_sum(row, Batch(torch.arange(1), x, y, mask), Clip(0.3))
    assert broken.tolist() == [1]
    assert torch.equal(sums, without)


def test_chain_with_several_positions_matches_loop() -> None:
    """Without a flattening layer, a linear layer maps each position of an example."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, CLASSES)).double()
    row = Layout.of(model).row_of(model).unsqueeze(0)
    x, y = torch.randn(1, EXAMPLES, 2, FEATURES, dtype=torch.float64), torch.randn(1, EXAMPLES, 2, CLASSES).double()
    batch = Batch(torch.arange(1), x, y, torch.ones(1, EXAMPLES, dtype=torch.bool))
    sums, _ = GhostBackend(model, nn.MSELoss()).clipped_sum(row, batch, Clip(0.3))
    expected, _ = LoopBackend(model, nn.MSELoss()).clipped_sum(row, batch, Clip(0.3))
    torch.testing.assert_close(sums, expected, rtol=1e-9, atol=1e-12)
