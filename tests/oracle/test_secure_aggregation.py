"""Secure aggregation is for sums of private answers: what looks at single messages, or is no such sum, is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
import torch
from privacy_worlds import DIM, clients_of, digits_of, oracle_of
from torch import Tensor

import fedpriv as fp
from fedpriv.strategies.fedavg import AddMeanUpdate, LocalSteps, Served

SIZES = (12, 9, 15)
SECURE = fp.Privacy(epsilon=3, trust=fp.SecureAggregation(min_honest=2))


@dataclass(frozen=True)
class MedianServer(AddMeanUpdate):
    """An aggregator that looks at single messages."""

    is_sum: ClassVar[bool] = False

    def __call__(self, message: Tensor, network, state: Served) -> tuple[Tensor, Served]:
        model = state.model + network.gather(message).median(0, keepdim=True).values
        return model.expand_as(message), replace(state, model=model)


def test_secagg_with_single_message_server_raises() -> None:
    strategy = fp.Strategy(LocalSteps(0.1), MedianServer())
    with pytest.raises(fp.ConfigError, match="needs each client's message"):
        fp.train(clients_of(digits_of(SIZES)), strategy, SECURE, rounds=2)
    assert fp.train(clients_of(digits_of(SIZES)), strategy, fp.Privacy(epsilon=3), rounds=2).rounds == 2


@pytest.mark.parametrize(
    "strategy",
    [
        fp.inexact_admm(),
        fp.inexact_admm(fp.Trust(), linearize_at="received"),
        fp.inexact_admm(feasible=fp.BoxSet(1.0), linearize_at="received"),
    ],
)
def test_secagg_with_nonlinear_step_raises(strategy: fp.Strategy) -> None:
    with pytest.raises(fp.ConfigError, match="not sums of private query results"):
        fp.train(clients_of(digits_of(SIZES)), strategy, SECURE, rounds=2)


@pytest.mark.parametrize("cohort", [fp.FixedCohort(2), fp.PoissonCohort(0.9)])
def test_secagg_stateful_step_varying_cohort_raises(cohort) -> None:
    """A client's later messages repeat its earlier noise beside that of other clients.

    Sums of messages are then no functions of the sums of answers: for 20 clients, cohorts of 5 and 60 rounds, mu^2 was
    computed to be 2.9 times the claim.
    """
    with pytest.raises(fp.ConfigError):
        fp.Training(
            clients_of(digits_of(SIZES)),
            fp.inexact_admm(linearize_at="received"),
            SECURE,
            rounds=3,
            network=fp.Star(3, cohort),
        )


class Signs(LocalSteps):
    """A step without memory that is not linear: a sum of signs is no function of the sum of the answers."""

    def __call__(self, received: Tensor, state: dict[str, Tensor], oracle) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.learning_rate * oracle.gradient(received).sign(), state


def test_secagg_stateless_nonlinear_step_raises() -> None:
    with pytest.raises((fp.ConfigError, fp.PrivacyError)):
        fp.train(clients_of(digits_of(SIZES)), fp.Strategy(Signs(0.1), AddMeanUpdate()), SECURE, rounds=2)


def test_secagg_one_query_per_round_at_received_point() -> None:
    oracle = oracle_of(digits_of(SIZES), fp.Privacy(noise_multiplier=1.0, trust=fp.SecureAggregation(2)))
    params = torch.zeros(len(SIZES), DIM, dtype=torch.float64)
    with pytest.raises(fp.PrivacyError, match="at the received point"):
        oracle.gradient(params)  # nothing was received yet
    oracle.begin_round(0, torch.arange(3), params)
    with pytest.raises(fp.PrivacyError, match="not received"):
        oracle.gradient(params + 1e-12)
    oracle.gradient(params)
    with pytest.raises(fp.PrivacyError, match="second query"):
        oracle.gradient(params)
    assert len(oracle.engine.ledger.records) == 1


def test_secagg_with_several_local_steps_raises() -> None:
    with pytest.raises((fp.PrivacyError, fp.ConfigError)):
        fp.train(clients_of(digits_of(SIZES)), fp.fedavg(0.1, local_steps=2), SECURE, rounds=2)


@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize("cohort", [[0, 2], []])
def test_secagg_below_min_honest_raises(cohort: list[int], unit: Literal["sample", "client"]) -> None:
    oracle = oracle_of(digits_of(SIZES), fp.Privacy(noise_multiplier=1.0, trust=fp.SecureAggregation(3), unit=unit))
    params = torch.zeros(len(cohort), DIM, dtype=torch.float64)
    oracle.begin_round(0, torch.tensor(cohort, dtype=torch.long), params)
    with pytest.raises(fp.PrivacyError, match=f"{len(cohort)} participants, but the noise needs at least 3 honest"):
        oracle.gradient(params)
    assert len(oracle.engine.ledger.records) == 0
