"""FedAvg and its kin: plain SGD, drift and its cure, servers that match torch's optimisers, permuted clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from erm_worlds import EXACT, run
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.algorithms.scaffold import scaffold
from fedpriv.models import SoftmaxRegression
from fedpriv.strategies.adaptive_clipping import adaptive_clipping
from fedpriv.strategies.fedavg import fedavg, fedopt, fedprox
from fedpriv.strategies.server_optimizers import ServerAdaptive, ServerSgd

# client i has the loss (a_i x - b_i)^2 in one unknown, with the same weight for each
A, B = np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 2.0])
OPTIMUM = (A * B).sum() / (A**2).sum()


def quadratics(n: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.tensor([[A[i]]]), torch.tensor([B[i]])) for i in range(n)]


def scalar_model() -> nn.Module:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    return model


def limit(strategy: fp.Strategy, rounds: int = 130) -> float:
    return float(run(strategy, quadratics(), rounds, model=scalar_model(), loss="mse")[-1][0])


def test_one_client_fedavg_equals_torch_sgd():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 7, generator=generator), torch.randint(3, (64,), generator=generator)
    client = fp.make_clients(SoftmaxRegression(7, 3), nn.CrossEntropyLoss(), [TensorDataset(x, y)])
    training = fp.Training(client, fedavg(0.5, 4), EXACT, rounds=5, compute=fp.Compute(backend="vmap", device="cpu"))
    for _ in training:
        pass
    model = SoftmaxRegression(7, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    received = None
    for step in range(20):
        # the message is x - w, so the server adds it back to w: repeat that rounding
        if step % 4 == 0:
            if received is not None:
                model.linear.weight.data = received + (model.linear.weight.data - received)
            received = model.linear.weight.data.clone()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    expected = received + (model.linear.weight.data - received)
    assert torch.equal(training.progress.models[0].view(3, 7), expected)


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_fedavg_drifts_scaffold_reaches_optimum(steps: int):
    """K steps contract client i to its own optimum by r_i = (1 - 2 lr a_i^2)^K: the mean is weighted by 1 - r_i."""
    rate = 0.02
    pull = 1 - (1 - 2 * rate * A**2) ** steps
    drifted = (pull * B / A).sum() / pull.sum()
    assert limit(fedavg(rate, steps)) == pytest.approx(drifted, abs=1e-8)
    assert limit(scaffold(rate, steps)) == pytest.approx(OPTIMUM, abs=1e-8)
    assert limit(scaffold(rate, steps, control_rate=0.3)) == pytest.approx(OPTIMUM, abs=1e-8)
    assert (abs(drifted - OPTIMUM) > 0.01) == (steps > 1)


def test_fedprox_drifts_less_than_fedavg():
    """Many local steps with a large mu solve x = w - grad / mu: nearly one step of gradient descent."""
    far, near = limit(fedavg(0.02, 20)), limit(fedprox(0.02, 20.0, 20))
    assert abs(near - OPTIMUM) < 0.9 * abs(far - OPTIMUM)


def test_fedprox_exact_local_solutions_fixed_point():
    """x_i = argmin (a_i x - b_i)^2 + mu/2 (x - w)^2; w the mean of the x_i."""
    mu = 2.0
    pull = 2 * A**2 / (2 * A**2 + mu)
    fixed = (pull * B / A).sum() / pull.sum()
    assert limit(fedprox(0.04, mu, 100), rounds=40) == pytest.approx(fixed, abs=1e-6)


def test_scaffold_cohorts_keep_control_variates():
    network = fp.Star(3, fp.FixedCohort(2))
    clients = fp.make_clients(scalar_model(), nn.MSELoss(), [TensorDataset(x, y[:, None]) for x, y in quadratics()])
    training = fp.Training(
        clients,
        scaffold(0.02, 5, server_learning_rate=0.5),
        EXACT,
        rounds=300,
        network=network,
        compute=fp.Compute(dtype="float64"),
    )
    for _ in training:
        pass
    assert float(training.progress.models[0]) == pytest.approx(OPTIMUM, abs=1e-6)
    # at the optimum each control variate is its client's gradient there
    controls = training.progress.server.controls[:, 0].numpy()
    np.testing.assert_allclose(controls, 2 * A * (A * OPTIMUM - B), atol=1e-5)


@pytest.mark.parametrize("server", [ServerSgd(0.3, 0.9), ServerAdaptive("adagrad", 0.1, 0.0, 0.0, 0.0)])
def test_server_optimizers_equal_torch(server):
    """With the update as minus the gradient."""
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = (
        torch.optim.SGD([parameter], lr=0.3, momentum=0.9)
        if isinstance(server, ServerSgd)
        else torch.optim.Adagrad([parameter], lr=0.1, eps=0.0)
    )
    model = torch.zeros(1, 6, dtype=torch.float64)
    state = server.init(model)
    for _ in range(12):
        update = torch.randn(1, 6, generator=generator, dtype=torch.float64)
        parameter.grad = -update[0].clone()
        optimizer.step()
        model, state = server(model, update, state)
        torch.testing.assert_close(model[0], parameter.data, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_adaptive_servers_equal_algorithm_2(rule):
    server = ServerAdaptive(rule, 0.1, 0.9, 0.99, 1e-3)
    model, state = torch.zeros(1, 1, dtype=torch.float64), None
    state = server.init(model)
    x, m, v = 0.0, 0.0, 1e-6
    for u in (0.5, -0.2, 0.01, 3.0):
        m = 0.9 * m + 0.1 * u
        v = 0.99 * v + 0.01 * u * u if rule == "adam" else v - 0.01 * u * u * np.sign(v - u * u)
        x += 0.1 * m / (np.sqrt(v) + 1e-3)
        model, state = server(model, torch.full((1, 1), u, dtype=torch.float64), state)
        assert float(model) == pytest.approx(x, abs=1e-14)


@pytest.mark.parametrize("strategy", [fedavg(0.02, 3), fedopt(0.02, 3), scaffold(0.02, 3)], ids=lambda s: s.name)
def test_permuting_clients_permutes_rows(strategy):
    order = [2, 0, 1]
    clients = quadratics()
    outcomes = []
    for data in (clients, [clients[i] for i in order]):
        worlds = fp.make_clients(scalar_model(), nn.MSELoss(), [TensorDataset(x, y[:, None]) for x, y in data])
        training = fp.Training(worlds, strategy, EXACT, rounds=4, compute=fp.Compute(dtype="float64"))
        for _ in training:
            pass
        outcomes.append(training.progress.received)
    torch.testing.assert_close(outcomes[1], outcomes[0][order], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: fedavg(-1.0), "learning_rate"),
        (lambda: fedavg(float("nan")), "learning_rate"),
        (lambda: fedavg(0.1, server_learning_rate=0.0), "server_learning_rate"),
        (lambda: fedavg(0.1, server_momentum=1.0), "server_momentum"),
        (lambda: fedprox(0.1, float("nan")), "proximal_mu"),
        (lambda: fedopt(0.1, server_optimizer="sgd"), "server_optimizer"),
        (lambda: fedopt(0.1, server_learning_rate=-1.0), "server_learning_rate"),
        (lambda: fedopt(0.1, beta2=1.0), "beta2"),
        (lambda: fedopt(0.1, tau=-1.0), "tau"),
        (lambda: scaffold(0.1, server_learning_rate=-1.0), "server_learning_rate"),
        (lambda: adaptive_clipping(fedavg(0.1), clip_learning_rate=-1.0), "clip_learning_rate"),
    ],
)
def test_option_out_of_range_raises(make: Callable[[], fp.Strategy], field: str):
    with pytest.raises(fp.ConfigError, match=rf"strategy\.(adaptive_clip\.)?{field} = "):
        make()
