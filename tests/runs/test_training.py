"""Runs as users start them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import fedpriv as fp
from fedpriv.data import labels_of, load, partition
from fedpriv.models import SoftmaxRegression


def digits_clients(n_clients: int = 5) -> list[fp.Client]:
    train = load("digits").train
    parts = partition("iid", labels_of(train), n_clients, torch.Generator().manual_seed(0))
    return fp.make_clients(SoftmaxRegression(64, 10), nn.CrossEntropyLoss(), [Subset(train, p.tolist()) for p in parts])


def test_second_run_on_same_clients_raises() -> None:
    """It would start at the first run's result without counting its privacy cost."""
    clients = digits_clients()
    fp.train(clients, fp.fedavg(1.0), fp.Privacy(epsilon=1), rounds=2)
    with pytest.raises(fp.ConfigError, match=r"clients\[0\].*epsilon=1 .*new clients"):
        fp.train(clients, fp.fedavg(1.0), fp.Privacy(epsilon=1), rounds=2)


def test_trained_model_in_new_client_raises() -> None:
    """The clients are new, but the model is already trained."""
    model = SoftmaxRegression(64, 10)
    loader = DataLoader(load("digits").train)

    def run(module: nn.Module) -> fp.Result:
        client = fp.Client(module, nn.CrossEntropyLoss(), loader)
        return fp.train([client], fp.fedavg(1.0), fp.Privacy(epsilon=1), rounds=2)

    run(model)
    with pytest.raises(fp.ConfigError, match=r"clients\[0\].*epsilon=1 .*new model.*deepcopy"):
        run(model)
    with pytest.raises(fp.ConfigError, match=r"clients\[0\].*epsilon=1 "):
        run(nn.Sequential(model, nn.Linear(10, 10)))
    run(copy.deepcopy(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    run(model)


def test_result_model_in_new_clients_raises() -> None:
    """Functions that create clients copy the model; a deep copy by the user carries no record of the run."""
    data = load("digits").train
    loss = nn.CrossEntropyLoss()
    lazy = fp.lazy_clients(SoftmaxRegression(64, 10), loss, lambda _: data, [1437])

    def run(clients: Any) -> fp.Result:
        return fp.train(clients, fp.fedavg(1.0), fp.Privacy(epsilon=1), rounds=2)

    client = fp.Client(SoftmaxRegression(64, 10), loss, DataLoader(data))
    for trained in (run([client]).model, run(lazy).model, client.model, lazy.model):
        with pytest.raises(fp.ConfigError, match=r"clients\[0\].*epsilon=1 .*new model.*deepcopy"):
            run([fp.Client(trained, loss, DataLoader(data))])
        with pytest.raises(fp.ConfigError, match=r"make_clients.model.*epsilon=1 .*new model.*deepcopy"):
            fp.make_clients(trained, loss, [data])
        with pytest.raises(fp.ConfigError, match=r"lazy_clients.model.*epsilon=1 .*new model.*deepcopy"):
            fp.lazy_clients(trained, loss, lambda _: data, [1437])
        run(fp.make_clients(copy.deepcopy(trained), loss, [data]))


def test_training_writes_model_into_clients() -> None:
    clients = digits_clients()
    result = fp.train(clients, fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=3)
    for client in clients:
        row = torch.nn.utils.parameters_to_vector(client.model.parameters())
        torch.testing.assert_close(row, result.params)


@pytest.mark.parametrize("backend", ["vmap", "ghost", "linear"])
def test_same_seed_same_run_other_seed_other_noise(backend: str) -> None:
    def run(seed: int) -> torch.Tensor:
        return fp.train(
            digits_clients(),
            fp.fedavg(1.0),
            fp.Privacy(epsilon=3),
            rounds=3,
            seed=seed,
            secret_seed=seed,
            compute=fp.Compute(backend),
        ).params

    assert torch.equal(run(1), run(1))
    assert not torch.allclose(run(1), run(2))


def test_budget_ends_run_within_limit() -> None:
    """Noise for ten rounds, a hundred planned: the run stops in time, with epsilon within the limit."""
    noise = fp.Training(
        digits_clients(), fp.fedavg(1.0), fp.Privacy(epsilon=2), rounds=10
    ).plan.privacy.noise_multiplier
    result = fp.train(digits_clients(), fp.fedavg(1.0), fp.Privacy(epsilon=2, noise_multiplier=noise), rounds=100)
    assert result.rounds == 10
    assert 1.99 < result.spent.epsilon <= 2


def test_large_delta_warns() -> None:
    """With delta 0.001 a mechanism may publish one of 1437 examples. Public sizes count, not the true ones."""
    privacy = fp.Privacy(epsilon=3, delta=1e-3)
    with pytest.warns(UserWarning, match="delta=0.001 is not below 1/1437"):
        fp.train(digits_clients(), fp.fedavg(1.0), privacy, rounds=1)
    assert fp.Training(digits_clients(1), fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=1).warnings == []
    declared = [fp.Client(c.model, c.loss, c.loader, public_size=100) for c in digits_clients()]
    private = fp.Privacy(epsilon=3, delta=1e-3, relation="add_remove")
    assert fp.Training(declared, fp.fedavg(1.0), private, rounds=1).warnings == []
    exact = fp.Privacy(noise_on="none", delta=0.5)
    assert fp.Training(digits_clients(), fp.fedavg(1.0), exact, rounds=1).warnings == []


def test_secagg_stateful_messages_varying_cohort_raises() -> None:
    strategy = fp.inexact_admm(linearize_at="received")
    privacy = fp.Privacy(epsilon=3, trust=fp.SecureAggregation(2))
    with pytest.raises(fp.ConfigError, match=r"network\.cohort.*earlier rounds"):
        fp.train(digits_clients(), strategy, privacy, rounds=3, network=fp.Star(5, fp.FixedCohort(3)))
    assert fp.train(digits_clients(), strategy, privacy, rounds=3).spent.epsilon <= 3


def test_run_leaves_torch_generator_unchanged() -> None:
    clients = digits_clients()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fp.train(clients, fp.fedavg(1.0), fp.Privacy(epsilon=3), rounds=2)
    assert torch.equal(torch.rand(3), expected)


def test_reported_epsilon_within_enforced_limit() -> None:
    """With sampled batches the quick bound is loose; the limit applies to the filter's tight bound."""
    privacy = fp.Privacy(epsilon=1.0, sampling=fp.Poisson(0.1))
    training = fp.Training(digits_clients(), fp.fedavg(1.0), privacy, rounds=20)
    reports = list(training)
    assert len(reports) == 20
    assert float(training.ledger._guard.accountant.epsilon().max()) > 1.0
    assert training.spent().epsilon <= reports[-1].epsilon <= 1.0


def test_abandoned_run_charged_plan_within_limit() -> None:
    """The last round may be chosen by what was released; the epsilon of the plan covers all choices."""

    def left_after(rounds: int, privacy: fp.Privacy) -> tuple[float, float, float]:
        training = fp.Training(digits_clients(), fp.fedavg(1.0), privacy, rounds=10)
        for report in training:
            if report.round == rounds:
                break
        return training.result().spent.epsilon, training.spent().epsilon, training.plan.spent().epsilon

    charged, so_far, planned = left_after(4, fp.Privacy(epsilon=2))
    assert so_far < 1.3
    assert charged == pytest.approx(planned, rel=1e-9)
    charged, so_far, planned = left_after(4, fp.Privacy(noise_multiplier=10.0))
    assert 1.5 * so_far < charged == pytest.approx(planned, rel=1e-9)
    charged, so_far, planned = left_after(4, fp.Privacy(epsilon=2, noise_multiplier=5.0))
    assert so_far < charged == 2 < planned
    assert left_after(10, fp.Privacy(epsilon=2))[0] <= 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("rounds", 0), ("rounds", 1.5), ("rounds", True), ("evaluate_every", 0), ("checkpoint_every", -1), ("seed", "1")],
)
def test_invalid_count_in_python_raises(name: str, value: object) -> None:
    """As a configuration does."""
    options: dict[str, Any] = {"rounds": 1, name: value}
    with pytest.raises(fp.ConfigError, match=rf"^{name} = "):
        fp.Training([], fp.fedavg(0.1), fp.Privacy(3), **options)
