"""Steps, clip and rounds that cannot move the model far are said before the run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import forecast, load_config
from fedpriv.errors import PromiseWarning
from fedpriv.planning.reach import compute_reach

CONFIGS = Path(__file__).parents[2] / "configs"
PRIVACY = fp.Privacy(epsilon=3, delta=1e-5)
DRAW = torch.Generator().manual_seed(0)
DATA = [TensorDataset(torch.rand(12, 1, 8, 8, generator=DRAW), torch.arange(12) % 2) for _ in range(3)]


def network(norm: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    size = nn.utils.parameters_to_vector(model.parameters()).norm()
    for parameter in model.parameters():
        parameter.data *= norm / float(size.detach())
    return model


def reach_warnings(model: nn.Module, strategy: fp.Strategy, rounds: int, privacy: fp.Privacy = PRIVACY) -> list[str]:
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), DATA)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fp.Training(clients, strategy, privacy, rounds=rounds)
    texts = [str(one.message) for one in caught if issubclass(one.category, PromiseWarning)]
    return [text for text in texts if "the parameters can move by a distance of at most" in text]


def test_small_steps_warned() -> None:
    (text,) = reach_warnings(network(norm=5.0), fp.fedavg(0.1), rounds=10)
    assert "of at most 1," in text
    assert "norm 5." in text


REACHES: dict[str, tuple[nn.Module, fp.Strategy, int]] = {
    "more rounds": (network(5.0), fp.fedavg(0.1), 20),
    "larger steps": (network(5.0), fp.fedavg(0.3), 10),
    "smaller model": (network(2.0), fp.fedavg(0.1), 10),
    "starts at zero": (network(0.0), fp.fedavg(0.1), 10),
}


@pytest.mark.parametrize("name", REACHES)
def test_large_enough_steps_not_warned(name: str) -> None:
    model, strategy, rounds = REACHES[name]
    assert reach_warnings(model, strategy, rounds) == []


def test_without_clip_not_warned() -> None:
    assert reach_warnings(network(5.0), fp.fedavg(0.1), 10, fp.Privacy(noise_on="none")) == []


WAYS: dict[str, tuple[fp.Strategy, dict[str, Any], float]] = {
    "fedavg": (fp.fedavg(0.1), {}, 1.0),
    "local steps": (fp.fedavg(0.1, local_steps=3), {}, 3.0),
    "larger clip": (fp.fedavg(0.1), {"clip": fp.Clip(2.5)}, 2.5),
    "clients": (fp.fedavg(0.1), {"unit": "client"}, 1.0),
}


@pytest.mark.parametrize("name", WAYS)
def test_reach_by_hand(name: str) -> None:
    strategy, more, reach = WAYS[name]
    privacy = fp.Privacy(epsilon=3, delta=1e-5, **more)
    assert compute_reach(strategy.for_rounds(10), privacy, fp.Star(3), 10) == pytest.approx(reach)
    assert compute_reach(strategy.for_rounds(300), privacy, fp.Star(3), 300) == pytest.approx(30 * reach)


def test_reach_on_a_graph() -> None:
    strategy = fp.decentralized_sgd(fp.StepSize(0.1))
    assert compute_reach(strategy, PRIVACY, fp.Graph(nx.path_graph(4)), 10) == pytest.approx(1.0)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("digits*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_not_warned(path: Path) -> None:
    assert not any("the parameters can move" in text for text in forecast(load_config(path)).warnings)
