"""TorchScript: a loss of it trains like the function that it was made of, and a network of it is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from plain_torch import rows
from torch import Tensor, nn
from torch.nn import functional

import fedpriv as fp
from fedpriv.models.known_code import is_known

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:a secret_seed is given")


def plain(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels)


class Loss(nn.Module):
    """A loss with a setting that TorchScript keeps beside the code."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels) * self.scale


BATCH = torch.zeros(5, 3), torch.arange(5) % 3
LOSSES: dict[str, Callable[[], Callable[[Tensor, Tensor], Tensor]]] = {
    "a scripted function": lambda: torch.jit.script(plain),
    "a traced function": lambda: torch.jit.trace(plain, BATCH),
    "a scripted module": lambda: torch.jit.script(Loss()),
    "a function that calls a scripted one": lambda: calling(torch.jit.script(plain)),
}


def calling(scripted: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, labels: scripted(outputs, labels)


def trained(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    data = [rows(torch.randn(12, 4, generator=draw), torch.arange(12) % 3) for _ in range(2)]
    clients = fp.make_clients(model, loss, data)
    result = fp.train(clients, fp.fedavg(0.5), fp.Privacy(clip=fp.Clip(1.0), noise_multiplier=1e-6), rounds=3, seed=0)
    return torch.cat([parameter.detach().flatten() for parameter in result.model.parameters()])


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.mark.parametrize("name", LOSSES)
def test_torchscript_loss_matches_function(name: str) -> None:
    torch.testing.assert_close(trained(network(), LOSSES[name]()), trained(network(), plain), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_torchscript_loss_is_not_known(name: str) -> None:
    """It may print its inputs, so the ledger is written before the call, as for any code of the user."""
    assert not is_known(LOSSES[name]())


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "scripted": (lambda: torch.jit.script(network()), "model = 'RecursiveScriptModule"),
    "traced": (lambda: torch.jit.trace(network(), torch.zeros(2, 4)), "model = 'RecursiveScriptModule"),
    "with a scripted layer": (
        lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 3)),
        "model.0 = 'RecursiveScriptModule",
    ),
    "with a layer that mixes examples": (
        lambda: torch.jit.script(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))),
        "model = 'RecursiveScriptModule",
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_torchscript_network_raises(name: str) -> None:
    made, field = NETWORKS[name]
    with pytest.raises(fp.ConfigError, match=r"TorchScript.*load_state_dict") as error:
        trained(made(), plain)
    assert str(error.value).startswith(field)
