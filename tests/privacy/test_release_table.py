"""A run's releases are those of its table: priced once, looked up by round, query and index."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from privacy_worlds import clients_of, digits_of
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.epochs import PlannedCosts, compute_costs, count_costs
from fedpriv.privacy.accounting.events import group_histories
from fedpriv.privacy.accounting.plan_filter import UnplannedRelease
from fedpriv.privacy.record_table import RecordTable
from fedpriv.privacy.release.scheme import ReleaseScheme

SIZES = (6, 9, 12)
PRIVACY = fp.Privacy(epsilon=4, clip=fp.Clip(1.0))


def training_of(strategy: fp.Strategy | None = None, privacy: fp.Privacy = PRIVACY, rounds: int = 4) -> fp.Training:
    network = fp.Star(3, fp.FixedCohort(2))
    return fp.Training(
        clients_of(digits_of(SIZES)), strategy or fp.fedavg(0.5, local_steps=2), privacy, rounds=rounds, network=network
    )


@pytest.mark.parametrize(
    "privacy",
    [PRIVACY, replace(PRIVACY, sampling=fp.Allocation(2)), replace(PRIVACY, schedule=fp.Geometric(0.9))],
    ids=["equal rounds", "epochs", "falling noise"],
)
def test_table_equals_its_records(privacy: fp.Privacy) -> None:
    table = training_of(privacy=privacy).plan.records
    records = list(table)
    assert [table[position] for position in range(len(table))] == records
    assert list(RecordTable.of(records)) == records
    assert list(table[3:]) == records[3:]
    assert list(table.since(2)) == [record for record in records if record.round >= 2]
    assert list(table + table) == records * 2
    assert [table[position] for position in table.positions(1)] == [record for record in records if record.round == 1]
    costs, one_by_one = PlannedCosts(table, 3), compute_costs(records, 3)
    for start, end in ((0, len(records)), (1, 4), (2, 2)):
        assert group_histories(costs.between(start, end), 3) == group_histories(Counter(one_by_one[start:end]), 3)
    assert group_histories(count_costs(table, 3), 3) == group_histories(count_costs(records, 3), 3)
    assert account(table, 3, 1e-5) == account(records, 3, 1e-5)


def test_equal_rounds_share_one_kind() -> None:
    training = fp.Training(clients_of(digits_of(SIZES)), fp.fedavg(0.5, local_steps=2), PRIVACY, rounds=50)
    assert len(training.plan.records) == 100
    assert len(training.plan.releases.kinds) == 2  # the two answers of a round


def test_run_reuses_planned_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    training = training_of()

    def fail(*_: object) -> None:
        raise AssertionError("a release was priced during the run")

    monkeypatch.setattr(ReleaseScheme, "relative_noise", fail)
    list(training)
    assert list(training.ledger.records) == list(training.plan.records)


def query_gradient(training: fp.Training, round_index: int, cohort: list[int]) -> Tensor:
    rows = training.population.params[cohort]
    training.oracle.begin_round(round_index, torch.tensor(cohort), rows)
    return training.oracle.client_gradient(rows)


def test_release_of_other_clients_raises() -> None:
    training = training_of()
    planned = list(training.plan.records[0].clients or ())
    other = [client for client in range(3) if client not in planned]
    with pytest.raises(UnplannedRelease, match="no such query"):
        query_gradient(training, 0, [*other, planned[0]] if other[0] < planned[0] else [planned[0], *other])
    assert not training.ledger.records


def test_round_past_plan_raises() -> None:
    training = training_of()
    with pytest.raises(UnplannedRelease, match="no such query"):
        query_gradient(training, 4, [0, 1])


def test_larger_clip_bound_raises() -> None:
    training = training_of()
    clients = list(training.plan.records[0].clients or ())
    training.oracle.queries.privacy = replace(PRIVACY, clip=fp.Clip(2.0))
    with pytest.raises(UnplannedRelease, match="no such query"):
        query_gradient(training, 0, clients)


def test_smaller_clip_bound_shrinks_record_and_noise() -> None:
    training = training_of()
    planned = training.plan.releases.kinds[0]
    smaller = planned.within(fp.Clip(0.5))
    scheme = training.oracle.queries.scheme
    factors = [1.0] * len(planned.clients)
    assert smaller.record.bound == pytest.approx(planned.record.bound / 2)
    assert scheme.noise_scales(smaller, factors) == [scale / 2 for scale in scheme.noise_scales(planned, factors)]


@pytest.mark.parametrize("at", ["gradient", "message"])
def test_secret_cohort_size_hidden(at: str) -> None:
    """Each result about the whole cohort has one row per participant, drawn or not."""
    privacy = fp.Privacy(
        noise_multiplier=2.0, unit="client", noise_on=at, trust=fp.Central(cohort_rate=0.5), clip=fp.Clip(1.0)
    )
    training = fp.Training(clients_of(digits_of(SIZES)), fp.gradient_descent(0.5), privacy, rounds=9, secret_seed=3)
    params = training.population.params
    for index in range(9):
        drawn = training.oracle.begin_round(index, torch.arange(3), params)
        if at == "gradient":
            assert drawn is None
            answer = training.oracle.gradient(params)
        else:
            assert drawn is not None
            training.oracle.gradient(params[drawn])
            answer = training.oracle.release_message(params[drawn])
        assert len(answer) == 3
