"""Optimisers of torch where fedpriv's are wanted: the error shows the call that makes the same steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from error_texts import CNN, clients, dataset, error_of, run
from torch import nn, optim
from torch.utils.data import DataLoader

import fedpriv
from fedpriv.strategies.optimizers import Adam, AdamW, Momentum, Sgd, WeightDecay

PARAMETERS = [*CNN.parameters()]
SAME_STEPS: dict[str, tuple[Callable[[], object], str, object]] = {
    "SGD class": (lambda: optim.SGD, "fedpriv.Sgd()", Sgd()),
    "AdamW class": (lambda: optim.AdamW, "fedpriv.AdamW()", AdamW()),
    "SGD": (lambda: optim.SGD(PARAMETERS, 0.1), "fedpriv.Sgd()", Sgd()),
    "momentum": (
        lambda: optim.SGD(PARAMETERS, 0.1, momentum=0.8, nesterov=True),
        "fedpriv.Momentum(0.8, nesterov=True)",
        Momentum(0.8, nesterov=True),
    ),
    "SGD with decay": (
        lambda: optim.SGD(PARAMETERS, 0.1, weight_decay=0.2),
        "fedpriv.strategies.optimizers.WeightDecay(0.2, fedpriv.Sgd())",
        WeightDecay(0.2),
    ),
    "Adam": (lambda: optim.Adam(PARAMETERS, betas=(0.8, 0.999)), "fedpriv.Adam(beta1=0.8)", Adam(0.8)),
    "AdamW": (
        lambda: optim.AdamW(PARAMETERS, eps=1e-6, weight_decay=0.0),
        "fedpriv.AdamW(eps=1e-06, weight_decay=0.0)",
        AdamW(eps=1e-6, weight_decay=0.0),
    ),
}


@pytest.mark.parametrize("name", SAME_STEPS)
def test_torch_optimizer_error_shows_same_steps(name: str) -> None:
    make, text, same = SAME_STEPS[name]
    given: Any = make()
    assert f"is an optimiser of torch, which updates one model in place: write {text}" in error_of(
        lambda: fedpriv.fedavg(0.1, optimizer=given)
    )
    assert f"write fedpriv.fedavg(learning_rate={getattr(given, 'defaults', {}).get('lr', 0.1)}, optimizer={text})" in (
        error_of(lambda: run(strategy=given))
    )
    assert eval(text, {"fedpriv": fedpriv}) == same


@pytest.mark.parametrize("given", [optim.RMSprop, optim.RMSprop(PARAMETERS)])
def test_torch_optimizer_without_counterpart_raises(given: Any) -> None:
    message = error_of(lambda: fedpriv.fedavg(0.1, optimizer=given))
    assert "RMSprop has no counterpart in fedpriv: write fedpriv.Sgd(), fedpriv.Momentum()" in message


@pytest.mark.parametrize("given", [optim.Adam, "adam", None])
def test_fit_without_optimizer_shows_call(given: Any) -> None:
    loader = DataLoader(dataset(), batch_size=20)
    message = error_of(lambda: fedpriv.fit(CNN, loader, nn.CrossEntropyLoss(), given, epochs=1, epsilon=3.0))
    name = "Adam" if given is optim.Adam else "SGD"
    assert f"must be an optimiser of torch, e.g. torch.optim.{name}(model.parameters(), lr=0.1)" in message


@pytest.mark.parametrize("optimizer", [fedpriv.Momentum(), fedpriv.Adam()])
def test_client_momentum_with_sums_shows_server_momentum(optimizer: Any) -> None:
    privacy = fedpriv.Privacy(epsilon=3.0, trust=fedpriv.SecureAggregation(min_honest=2))
    message = error_of(lambda: fedpriv.plan(clients(), fedpriv.fedavg(0.1, optimizer=optimizer), privacy, rounds=2))
    assert "fedavg with server_momentum, or fedopt" in message
    for strategy in (fedpriv.fedavg(0.1, server_momentum=0.9), fedpriv.fedopt(0.1)):
        assert fedpriv.plan(clients(), strategy, privacy, rounds=2).releases


@pytest.mark.parametrize(
    ("cohort", "n", "rate"), [(fedpriv.FixedCohort(10), 50, "0.2"), (fedpriv.PoissonCohort(0.3), 4, "0.3")]
)
def test_cohort_with_central_trust_shows_its_rate(cohort: Any, n: int, rate: str) -> None:
    privacy = fedpriv.Privacy(epsilon=3.0, unit="client", trust=fedpriv.Central())
    message = error_of(
        lambda: fedpriv.plan([20] * n, fedpriv.fedavg(0.1), privacy, rounds=2, network=fedpriv.Star(n, cohort))
    )
    assert (
        f"network.cohort = {cohort}: central trust draws its cohorts in secret: set its cohort_rate to {rate},"
        in message
    )
