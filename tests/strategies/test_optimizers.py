"""Optimisers of private gradients: the rules of torch, many clients at once, the noise that DP-AdamBC subtracts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from resuming import assert_resumes_exactly
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import fingerprint, load_config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.strategies.base import Oracle

RUN = Path(__file__).parents[1] / "run.yaml"
STEP = 0.05

OF_TORCH: dict[str, tuple[Any, Callable[[list[Tensor]], optim.Optimizer]]] = {
    "sgd": (fp.Sgd(), lambda p: optim.SGD(p, STEP)),
    "momentum": (fp.Momentum(0.8), lambda p: optim.SGD(p, STEP, momentum=0.8)),
    "nesterov": (fp.Momentum(0.8, nesterov=True), lambda p: optim.SGD(p, STEP, momentum=0.8, nesterov=True)),
    "adam": (fp.Adam(0.8, 0.95, 1e-6), lambda p: optim.Adam(p, STEP, (0.8, 0.95), 1e-6)),
    "adamw": (fp.AdamW(weight_decay=0.3), lambda p: optim.AdamW(p, STEP, weight_decay=0.3)),
}


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OF_TORCH)
def test_optimizer_rows_match_torch(name: str) -> None:
    ours, theirs = OF_TORCH[name]
    torch.manual_seed(0)
    start, pull = torch.randn(3, 5, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)
    rows = [row.clone().requires_grad_() for row in start]
    optimizers = [theirs([row]) for row in rows]
    x, kept = start, ours.init(start)
    for _ in range(20):
        for row, optimizer, weight in zip(rows, optimizers, pull, strict=True):
            row.grad = (weight * row + weight.sin()).detach()
            optimizer.step()
        x, kept = ours.step(x, pull * x + pull.sin(), STEP, kept, None)
    close(x, torch.stack([row.detach() for row in rows]))


def clients_of(dim: int = 4, n: int = 3) -> list[fp.Client]:
    torch.manual_seed(0)
    data = [TensorDataset(torch.randn(6, dim).double(), torch.randint(0, 3, (6,))) for _ in range(n)]
    return fp.make_clients(nn.Linear(dim, 3).double(), nn.CrossEntropyLoss(), data)


def by_torch(
    clients: list[fp.Client], make: Callable[[list[Tensor]], optim.Optimizer], rounds: int, keep: bool
) -> Tensor:
    """FedAvg with plain torch: two local steps a round, of clients with equally many examples."""
    model = clients[0].model
    w = nn.utils.parameters_to_vector(model.parameters()).detach()
    rows = [w.clone().requires_grad_() for _ in clients]
    optimizers = [make([row]) for row in rows]
    for _ in range(rounds):
        for i, client in enumerate(clients):
            with torch.no_grad():
                rows[i].copy_(w)
            x, y = next(iter(torch.utils.data.DataLoader(client.loader.dataset, batch_size=6)))
            optimizer = optimizers[i] if keep else make([rows[i]])
            for _ in range(2):
                nn.utils.vector_to_parameters(rows[i].detach(), model.parameters())
                loss = nn.functional.cross_entropy(model(x), y)
                rows[i].grad = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
                optimizer.step()
        w = torch.stack([row.detach() for row in rows]).mean(0)
    return w


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize("state", ["reset", "keep"])
def test_fedavg_with_optimizer_matches_torch(name: str, state: Any) -> None:
    ours, theirs = OF_TORCH[name]
    strategy = fp.fedavg(STEP, 2, optimizer=ours, optimizer_state=state)
    compute = fp.Compute(dtype="float64")
    found = fp.train(clients_of(), strategy, fp.Privacy(noise_on="none"), rounds=4, seed=0, compute=compute).params
    close(found, by_torch(clients_of(), theirs, 4, state == "keep"))


@pytest.mark.parametrize("name", OF_TORCH)
def test_dp_gd_with_optimizer_matches_torch(name: str) -> None:
    ours, theirs = OF_TORCH[name]
    compute = fp.Compute(dtype="float64")
    strategy = fp.gradient_descent(STEP, optimizer=ours)
    found = fp.train(clients_of(), strategy, fp.Privacy(noise_on="none"), rounds=5, seed=0, compute=compute).params
    model, optimizer = (one := clients_of())[0].model, theirs(list(one[0].model.parameters()))
    for _ in range(5):
        optimizer.zero_grad()
        losses = [
            nn.functional.cross_entropy(model(x), y)
            for client in one
            for x, y in torch.utils.data.DataLoader(client.loader.dataset, batch_size=6)
        ]
        torch.stack(losses).mean().backward()
        optimizer.step()
    close(found, nn.utils.parameters_to_vector(model.parameters()).detach())


@pytest.mark.parametrize("name", OF_TORCH)
def test_decentralized_sgd_optimizer_matches_torch(name: str) -> None:
    """Without links that are used, decentralised training is each node's own optimiser."""
    ours, theirs = OF_TORCH[name]
    compute = fp.Compute(dtype="float64")
    strategy = fp.decentralized_sgd(STEP, optimizer=ours)
    one = clients_of(n=1)
    found = fp.train(one, strategy, fp.Privacy(noise_on="none"), rounds=5, seed=0, compute=compute).params
    model = clients_of(n=1)[0].model
    optimizer = theirs(list(model.parameters()))
    for _ in range(5):
        optimizer.zero_grad()
        for x, y in torch.utils.data.DataLoader(clients_of(n=1)[0].loader.dataset, batch_size=6):
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    close(found, nn.utils.parameters_to_vector(model.parameters()).detach())


def test_inactive_nodes_keep_step_count() -> None:
    graph = fp.Graph(nx.path_graph(3), activity=fp.RandomNodes(0.5))
    strategy = fp.decentralized_sgd(STEP, optimizer=fp.Adam())
    training = fp.Training(clients_of(), strategy, fp.Privacy(noise_multiplier=1), rounds=6, seed=1, network=graph)
    list(training)
    steps = training.progress.local.optimizer.steps
    asked = torch.zeros(3, 1, dtype=torch.float64)
    for record in training.ledger.records:
        asked[list(range(3)) if record.clients is None else list(record.clients)] += 1
    assert torch.equal(steps, asked)
    assert len(steps.unique()) > 1


def test_noise_corrected_adam_matches_paper() -> None:
    """Tang et al., 2024: `x -= a m^ / sqrt(max(v^ - variance, floor))`, for each row's own variance."""
    torch.manual_seed(0)
    gradients, variance = torch.randn(8, 2, 5, dtype=torch.float64), torch.tensor([[0.25], [4.0]]).double()
    adam = fp.Adam(0.9, 0.99, noise_floor=1e-3)
    x, m, v = torch.zeros(3, 2, 5, dtype=torch.float64)
    found, kept = x, adam.init(x)
    for s, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        inside = (v / (1 - 0.99**s) - variance).clamp_min(1e-3)
        x = x - STEP * m / (1 - 0.9**s) / inside.sqrt()
        found, kept = adam.step(found, g, STEP, kept, variance)
        close(found, x)


PROMISES = {
    "local": {},
    "laplace": {"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")},
    "clients": {"unit": "client"},
    "secure aggregation": {"trust": fp.SecureAggregation(2)},
    "central": {"trust": fp.Central()},
    "pairwise": {"trust": fp.Pairwise(1, 3.0)},
    "poisson": {"sampling": fp.Poisson(0.5)},
}


@pytest.mark.parametrize("name", PROMISES)
def test_oracle_noise_variance_matches_measured(name: str) -> None:
    """Against what is measured in 3000 entries of a gradient that is zero without noise."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3000))

        def forward(self, x: Tensor) -> Tensor:
            return 0.0 * x.sum(1, keepdim=True) * self.weight.sum()

    privacy = fp.Privacy(noise_multiplier=1.5, **PROMISES[name])
    torch.manual_seed(0)
    data = [TensorDataset(torch.randn(m, 2), torch.zeros(m, 1)) for m in (4, 8, 12)]
    clients = fp.make_clients(Flat(), nn.MSELoss(), data)
    training = fp.Training(clients, fp.gradient_descent(0.1), privacy, rounds=1, seed=0, secret_seed=0)
    oracle, start = training.oracle, training.progress.received
    oracle.begin_round(0, torch.arange(3), start)
    rows, variance, in_mean = oracle.gradient(start).double(), oracle.noise_variance, oracle.noise_in_mean
    assert variance.shape == in_mean.shape == (3, 1)
    torch.testing.assert_close(rows.var(1), variance[:, 0].double(), rtol=0.15, atol=0)
    torch.testing.assert_close(rows.mean(0).var(), in_mean.mean().double(), rtol=0.15, atol=0)


def test_noise_floor_with_message_noise_raises() -> None:
    privacy = fp.Privacy(noise_multiplier=1, noise_on="message", unit="client")
    for strategy in (fp.fedavg(0.1, 2, optimizer=fp.Adam(noise_floor=1e-4)), corrected()):
        with pytest.raises(
            fp.ConfigError, match=r"strategy.optimizer = 'noise_floor': works only with noise on gradients"
        ):
            fp.train(clients_of(), strategy, privacy, rounds=2)


def corrected() -> fp.Strategy:
    return fp.gradient_descent(0.1, optimizer=fp.AdamW(noise_floor=1e-4))


def test_noise_correction_enlarges_adam_steps() -> None:
    """A gradient of 0.01 under noise of deviation 1: Adam's steps are a hundredth of what they are without noise."""
    torch.manual_seed(0)
    true, variance = 0.01, torch.tensor([[1.0]], dtype=torch.float64)

    def moved(optimizer: fp.Adam) -> float:
        x = torch.zeros(1, 2000, dtype=torch.float64)
        kept = optimizer.init(x)
        for _ in range(200):
            x, kept = optimizer.step(x, true + torch.randn_like(x), 1.0, kept, variance)
        return float(x.mean())

    plain, undone = moved(fp.Adam(0.9, 0.9)), moved(fp.Adam(0.9, 0.9, noise_floor=0.1))
    assert plain == pytest.approx(-200 * true, rel=0.3)
    assert undone < 1.5 * plain


STRATEGIES_WITH: dict[str, Callable[[], fp.Strategy]] = {
    "fedavg": lambda: fp.fedavg(0.1, 2, optimizer=fp.Adam(noise_floor=1e-4), optimizer_state="keep"),
    "fedprox": lambda: fp.fedprox(fp.Cosine(0.1, 6), 0.1, 2, optimizer=fp.Momentum(), optimizer_state="keep"),
    "dp_gd": corrected,
    "decentralized_sgd": lambda: fp.decentralized_sgd(0.1, optimizer=fp.Adam()),
}


@pytest.mark.parametrize("name", STRATEGIES_WITH)
def test_optimizer_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    def training(folder: Path, *, resume: bool = False) -> fp.Training:
        network = fp.Graph(nx.path_graph(3)) if name == "decentralized_sgd" else fp.Star(3)
        settings = {"rounds": 6, "seed": 0, "secret_seed": 1, "network": network, "checkpoint_every": 1}
        promise = fp.Privacy(noise_multiplier=1.0)
        return fp.Training(clients_of(), STRATEGIES_WITH[name](), promise, folder=folder, **settings, resume=resume)

    assert_resumes_exactly(training, tmp_path)


def test_optimizer_state_with_message_noise_raises() -> None:
    privacy = fp.Privacy(noise_multiplier=1, noise_on="message", unit="client")
    kept = fp.fedavg(0.1, 2, optimizer=fp.Adam(), optimizer_state="keep")
    for strategy in (kept, fp.decentralized_sgd(0.1, optimizer=fp.Momentum())):
        with pytest.raises(fp.ConfigError, match=r"privacy\.noise_on = 'message'"):
            fp.train(clients_of(), strategy, privacy, rounds=2)
    fp.train(clients_of(), fp.fedavg(0.1, 2, optimizer=fp.Adam()), privacy, rounds=2)


def test_local_adam_with_secure_aggregation_raises() -> None:
    privacy = fp.Privacy(noise_multiplier=1, trust=fp.SecureAggregation(2))
    with pytest.raises(fp.ConfigError, match="local trust, or plain client updates without an optimizer"):
        fp.train(clients_of(), fp.fedavg(0.1, optimizer=fp.Adam()), privacy, rounds=2)
    fp.train(clients_of(), corrected(), privacy, rounds=2)


def test_optimizer_accepted_by_listed_strategies_only() -> None:
    having = {"fedavg", "fedprox", "fedopt", "dp_gd", "decentralized_sgd"}
    for name in STRATEGIES:
        options = {
            "fedavg": "learning_rate: 1",
            "fedopt": "learning_rate: 1",
            "fedprox": "learning_rate: 1, proximal_mu: 1",
        }
        text = f"strategy={{name: {name}, optimizer: adam, {options.get(name, '')}}}"
        if name in having:
            assert load_config(RUN, [text]).strategy.options["optimizer"] == fp.Adam()
        else:
            with pytest.raises(
                fp.ConfigError,
                match=f"strategy.optimizer = 'adam': {name} computes its own steps and uses no optimiser",
            ):
                load_config(RUN, [text])


REFUSED: dict[str, Callable[[], object]] = {
    "strategy.momentum": lambda: fp.gradient_descent(1, momentum=0.5, optimizer=fp.Adam()),
    "strategy.regularizer": lambda: fp.gradient_descent(1, fp.strategies.proximal.L2(0.1), optimizer=fp.Adam()),
    "strategy.optimizer.beta1": lambda: fp.Adam(1.0),
    "strategy.optimizer.noise_floor": lambda: fp.AdamW(noise_floor=0.0),
    "strategy.optimizer = 'adam': must be created with fedpriv.Adam": lambda: fp.fedavg(1, optimizer="adam"),
    r"strategy.optimizer = .*: is a class: create an object with fedpriv.Adam\(\)": lambda: fp.fedavg(
        1, optimizer=fp.Adam
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_optimizer_combination_raises(name: str) -> None:
    with pytest.raises(fp.ConfigError, match=name):
        REFUSED[name]()


def test_default_optimizer_keeps_fingerprint() -> None:
    def of(more: str) -> str:
        return fingerprint(load_config(RUN, [f"strategy={{name: fedavg, learning_rate: 1{more}}}"]))

    assert of("") == of(", optimizer: sgd, optimizer_state: reset") != of(", optimizer: momentum")
    assert of(", optimizer: {adam: {noise_floor: 1e-4}}") != of(", optimizer: adam") != of(", optimizer: adamw")


def test_noise_variance_independent_of_data() -> None:
    """Neighbouring data sets have bitwise equal variances."""

    def variances(value: float) -> list[Tensor]:
        found: list[Tensor] = []
        data = [TensorDataset(torch.full((m, 2), value), torch.zeros(m, dtype=torch.long)) for m in (3, 5)]
        clients = fp.make_clients(nn.Linear(2, 2), nn.CrossEntropyLoss(), data)
        training = fp.Training(clients, corrected(), fp.Privacy(epsilon=1), rounds=2, seed=0, secret_seed=0)
        oracle: Oracle = training.oracle
        list(training)
        found += [oracle.noise_variance, oracle.noise_in_mean]
        return found

    assert all(torch.equal(a, b) for a, b in zip(variances(0.0), variances(100.0), strict=True))
    assert math.isfinite(float(variances(1.0)[0].sum()))
