"""Every reported model lies in the set of the problem, in float32, from a start outside of it and under much noise."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import pytest
import torch
from erm_worlds import logistic_data, split
from torch import Tensor
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.algorithms.mirror_descent import EuclideanBall, L1Ball, accelerated_mirror_descent
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.strategies.proximal import L1, Ball, Box, ElasticNet, Proximal, Simplex

ROUNDS, DIM = 16, 8
# seven clients: in float32 the mean of seven numbers 0.1 is above 0.1
DATA = split(*logistic_data(120, DIM), (*[8] * 6, 72))
LITTLE = fp.Privacy(noise_multiplier=1e-3)


def far_clients(start: float = 3.0) -> list[fp.Client]:
    model = LogisticRegression(DIM)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(start * torch.linspace(-1, 1, DIM))
    clients = fp.make_clients(model, resolve_loss("logistic"), [TensorDataset(x, y) for x, y in DATA])
    for client in clients:
        client.problem = fp.Problem()
    return clients


def reported(strategy: fp.Strategy, network=None, privacy: fp.Privacy | None = None, constrained=False) -> list[Tensor]:
    """All that a run reports, model by model."""
    clients = far_clients()
    if constrained:
        for client in clients:
            client.problem = fp.Problem(constraints=(fp.LossAtMost(0.5),))
    privacy = privacy or fp.Privacy(noise_multiplier=0.1)
    training = fp.Training(
        clients, strategy, privacy, rounds=ROUNDS, seed=1, network=network, compute=fp.Compute(dtype="float32")
    )
    models: list[Tensor] = []
    for _ in training:
        models += [*training.progress.models.clone(), training.result().params]
    assert len(models) >= 2 * ROUNDS
    return models


def outside(h: Proximal, model: Tensor) -> float:
    """By how much a model is outside of the set, a ball's radius taken as reached at its rounding."""
    if isinstance(h, Simplex):
        return max(-float(model.min()), abs(float(model.double().sum()) - h.total) - 1e-6)
    if isinstance(h, Box):
        return float(model.abs().max() - torch.tensor(h.bound))
    assert isinstance(h, Ball)
    return float(model.double().norm()) - h.radius * (1 + 1e-6)


METHODS: dict[str, Callable[[Proximal], fp.Strategy]] = {
    "gradient descent": lambda h: fp.gradient_descent(3.0, h),
    "random iterate": lambda h: fp.gradient_descent(3.0, h, random_iterate=1),
    "momentum": lambda h: fp.gradient_descent(3.0, h, momentum=0.9),
    "momentum, average": lambda h: fp.gradient_descent(3.0, h, momentum=0.6, average=2.0),
    "average": lambda h: fp.gradient_descent(3.0, h, average=2.0),
    "svrg": lambda h: fp.svrg(3.0, 5, h),
    "svrg++": lambda h: fp.svrg(3.0, 2, h, doubling=True),
    "dual averaging": lambda h: fp.dual_averaging(h, weight_power=0.0, gamma=0.1, gamma_power=0.5),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("h", [Simplex(), Simplex(0.3), Box(0.1), Box(0.7), Ball(0.7)], ids=str)
def test_reported_models_are_feasible(h: Proximal, name: str):
    assert max(outside(h, model) for model in reported(METHODS[name](h))) <= 0


@pytest.mark.parametrize("h", [Simplex(), Box(0.1), Ball(0.7)], ids=str)
def test_constrained_models_are_feasible(h: Proximal):
    models = reported(fp.private_al(ROUNDS, regularizer=h), privacy=LITTLE, constrained=True)
    assert max(outside(h, model) for model in models) <= 0


@pytest.mark.parametrize("h", [Simplex(), Box(0.1), Ball(0.7)], ids=str)
def test_node_models_and_mean_are_feasible(h: Proximal):
    made = METHODS["dual averaging"](h)
    models = reported(made, fp.Graph(nx.path_graph(7)), LITTLE)
    assert max(outside(h, model) for model in models) <= 0


@pytest.mark.parametrize(("ball", "order"), [(EuclideanBall(0.7), 2), (L1Ball(0.7), 1)], ids=["l2", "l1"])
def test_mirror_descent_models_are_feasible(ball: EuclideanBall | L1Ball, order: int):
    models = reported(accelerated_mirror_descent(ball, 0.25))
    assert max(float(model.double().norm(p=order)) for model in models) <= 0.7 * (1 + 1e-6)


@pytest.mark.parametrize("h", [L1(0.05), ElasticNet(0.05, 0.01)], ids=str)
def test_momentum_reported_model_keeps_exact_zeros(h: Proximal):
    """The server's own iterate, to the last bit: taken back from the extrapolated point, zeros would be nearly zero."""
    training = fp.Training(
        far_clients(0.1), fp.gradient_descent(3.0, h, momentum=0.9), fp.Privacy(noise_on="none"), rounds=40, seed=1
    )
    zeros = 0
    for _ in training:
        model = training.progress.models[0]
        assert torch.equal(model, training.progress.server.iterate[0])
        assert not ((model != 0) & (model.abs() < 1e-7)).any()
        zeros = max(zeros, int((model == 0).sum()))
    assert zeros > 0
