"""Device transfers and kernels of a round, counted without a device, so that the test runs everywhere."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
import torch
from counting_device import DEVICE, CountingDevice, Counts
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import MnistCNN, SoftmaxRegression
from fedpriv.runs import training
from fedpriv.strategies.base import Strategy

MODELS = {
    "cnn": MnistCNN,
    "softmax": lambda: SoftmaxRegression(784, 10),
    "softmax with bias": lambda: SoftmaxRegression(784, 10, bias=True),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10)),
}
KINDS: dict[str, tuple[Strategy, dict[str, Any]]] = {
    "sample": (fp.fedavg(0.1), {}),
    "client": (fp.fedavg(0.1), {"unit": "client"}),
    "laplace": (fp.fedavg(0.1), {"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")}),
    "drawn": (fp.fedavg(0.1), {"sampling": fp.Poisson(0.9)}),
    "drawn of clients": (fp.fedavg(0.1), {"sampling": fp.Poisson(0.9), "unit": "client"}),
    "a fixed number": (fp.fedavg(0.1), {"sampling": fp.FixedSize(3)}),
    "central": (fp.fedavg(0.1), {"trust": fp.Central()}),
    "admm": (fp.inexact_admm(), {}),
    "tracking": (fp.gradient_tracking(), {}),
}


QUICK = ("sample", "central")  # what the larger model is tried with whenever something changes


def partly_awake(n: int) -> fp.Graph:
    """A cycle of n nodes; some of them compute in a round."""
    return fp.Graph(nx.cycle_graph(n), activity=fp.RandomNodes(0.6))


COHORTS: dict[str, tuple[Strategy, Callable[[int], fp.Star | fp.Graph]]] = {
    "averaging": (fp.fedavg(0.1), lambda n: fp.Star(n, fp.FixedCohort(5))),
    "admm": (fp.inexact_admm(), lambda n: fp.Star(n, fp.FixedCohort(5))),
    "tracking": (fp.gradient_tracking(), lambda n: fp.Graph(nx.cycle_graph(n), activity=fp.RandomNodes(0.6))),
    "gossip": (fp.decentralized_sgd(), lambda n: fp.Graph(nx.cycle_graph(n), activity=fp.RandomNodes(0.6))),
    "dual averaging": (fp.dual_averaging(), lambda n: fp.Graph(nx.cycle_graph(n), activity=fp.RandomNodes(0.6))),
    "a sparse matrix": (
        fp.decentralized_sgd(),
        lambda n: fp.Graph(nx.cycle_graph(9 * n), activity=fp.RandomNodes(0.6)),
    ),
}


def rounds_of(
    model: str,
    n: int,
    strategy: Strategy,
    settings: dict[str, Any],
    each: int = 4,
    network: fp.Star | fp.Graph | None = None,
    **options: Any,
) -> list[Counts]:
    """What each round but the first asks for, of n clients with as many examples each."""
    torch.manual_seed(0)
    x, y = torch.randn(n * each, 1, 28, 28), torch.arange(n * each) % 10
    data = [TensorDataset(*pair) for pair in zip(x.split(each), y.split(each), strict=True)]
    with CountingDevice() as device:
        clients = fp.make_clients(MODELS[model](), nn.CrossEntropyLoss(), data)
        if network is None and strategy.name == fp.gradient_tracking().name:
            network = fp.Graph(nx.cycle_graph(n))
        privacy, seeds = fp.Privacy(noise_multiplier=1.0, **settings), {"seed": 0, "secret_seed": 0}
        training = fp.Training(
            clients,
            strategy,
            privacy,
            rounds=3,
            network=network,
            compute=fp.Compute(device=str(DEVICE)),
            **seeds,
            **options,
        )
        assert "(" not in training.backend, training.backend  # no faster backend was refused
        found = [device.counts.copy() for _ in training]
    return [after - before for before, after in pairwise(found)]


@pytest.fixture(autouse=True)
def no_state_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts rounds without the test for state, which a few random rounds have."""
    monkeypatch.setattr(training, "draw_check_rounds", lambda _: frozenset())


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        pytest.param(kind, model, marks=pytest.mark.slow if model == "cnn" and kind not in QUICK else [])
        for kind in KINDS
        for model in ("cnn", "softmax")
    ]
    + [("sample", "softmax with bias"), ("sample", "mlp")],
)
def test_device_transfers_per_round_bounded(kind: str, model: str) -> None:
    each = 24 if "sampling" in KINDS[kind][1] else 4  # so many that batches are alike, and few enough for one piece
    few, many = (rounds_of(model, n, *KINDS[kind], each) for n in (6, 17))
    for counts in (*few, *many):
        assert counts.uploads <= 3, counts.where
        assert counts.synchronisations <= 2, counts.where
    assert {counts.kernels for counts in few} == {counts.kernels for counts in many}


@pytest.mark.parametrize("kind", COHORTS)
def test_device_transfers_with_cohorts_bounded(kind: str) -> None:
    strategy, network = COHORTS[kind]
    for clients in (8, 17):
        of = network(clients)
        for counts in rounds_of("softmax", of.n_clients, strategy, {}, network=of):
            assert counts.uploads <= 3, counts.where
            assert counts.synchronisations <= 2, counts.where


@pytest.mark.parametrize("batches", [pytest.param(1, marks=pytest.mark.slow), 5])
@pytest.mark.parametrize("kind", ["sample", pytest.param("tracking", marks=pytest.mark.slow)])
def test_evaluation_synchronises_once_per_result(kind: str, batches: int) -> None:
    """The metrics of the mean model are copied at once, and so are those of the models of all nodes."""
    test = TensorDataset(torch.randn(1000 * batches, 1, 28, 28), torch.arange(1000 * batches) % 10)
    strategy, settings = KINDS[kind]
    plain, evaluated = (rounds_of("cnn", 5, strategy, settings, test=data) for data in (None, test))
    extra = [after - before for after, before in zip(evaluated, plain, strict=True)]
    assert [counts.uploads for counts in extra] == [0, 0]
    assert [counts.synchronisations for counts in extra] == [2 if kind == "tracking" else 1] * 2


def test_node_evaluation_kernels_constant() -> None:
    test = TensorDataset(torch.randn(300, 1, 28, 28), torch.arange(300) % 10)
    few, many = (rounds_of("cnn", n, fp.gradient_tracking(), {}, test=test) for n in (5, 12))
    assert {counts.kernels for counts in few} == {counts.kernels for counts in many}
