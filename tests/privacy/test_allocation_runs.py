"""Runs whose batches are drawn by random allocation: who is in which batch, what is charged, and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.errors import ConfigError, PrivacyError, PromiseWarning
from fedpriv.models import SoftmaxRegression
from fedpriv.planning.compatibility import check_extended
from fedpriv.privacy.accounting import allocation
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.epochs import compute_costs
from fedpriv.privacy.accounting.events import FREE, Event
from fedpriv.privacy.accounting.groups import scale_to_group
from fedpriv.privacy.budget_file import BudgetTerms
from fedpriv.privacy.budget_shares import compute_share, compute_spending
from fedpriv.privacy.record import Record
from fedpriv.randomness.keystream import uniform_below
from fedpriv.tuning.search_cost import compute_reserved_cost
from fedpriv.tuning.settings import SearchSettings

SIZES, BATCHES, ROUNDS = (400, 37), 10, 20
PRIVACY = fp.Privacy(noise_multiplier=1.0, relation="add_remove", sampling=fp.Allocation(BATCHES))
TERMS = BudgetTerms(10.0, 1e-5, "sample", "add_remove", "sizes public", "digits", None, "0" * 32)


def training_of(
    privacy: fp.Privacy = PRIVACY, strategy: fp.Strategy | None = None, rounds: int = ROUNDS, **options: Any
) -> fp.Training:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(m, 3, generator=draw), torch.arange(m) % 2) for m in SIZES]
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data)
    seeds = {"seed": 1, "secret_seed": 1} | options
    return fp.Training(clients, strategy or fp.fedavg(0.5), privacy, rounds=rounds, **seeds)


def batches_of(training: fp.Training, rounds: range, index: int = 0) -> list[list[set[int]]]:
    """The examples of each client in each round."""
    draws, found = training.oracle.engine._sampler, list[list[set[int]]]()
    for t in rounds:
        draws.begin_round(t, torch.arange(len(SIZES)))
        chosen = draws._draw_batches(training.plan.privacy.sampling, index, torch.arange(len(SIZES)))
        parts = np.split(chosen.positions, chosen.counts.cumsum()[:-1])
        found.append([set(part.tolist()) for part in parts])
    return found


def record(round_index: int, **other: Any) -> Record:
    known: dict[str, Any] = {
        "query": "gradient",
        "index": 0,
        "mechanism": "gaussian",
        "noise_multiplier": 1.0,
        "unit": "sample",
        "relation": "add_remove",
        "sampling": "allocation",
        "rate": 1 / BATCHES,
        "batches": BATCHES,
    }
    return Record(round=round_index, **known | other)


# --- who is in which batch


def test_example_in_one_batch_per_epoch():
    training = training_of()
    for epoch in range(3):
        batches = batches_of(training, range(epoch * BATCHES, (epoch + 1) * BATCHES))
        for client, size in enumerate(SIZES):
            assert sorted(example for batch in batches for example in batch[client]) == list(range(size))


def test_assignments_uniform_and_independent():
    training, epochs = training_of(), 200
    first = np.zeros((epochs, SIZES[0]), dtype=int)
    for epoch in range(epochs):
        for t, batch in enumerate(batches_of(training, range(epoch * BATCHES, (epoch + 1) * BATCHES))):
            first[epoch, list(batch[0])] = t
    counts = np.bincount(first.ravel(), minlength=BATCHES)
    expected = first.size / BATCHES
    assert ((counts - expected) ** 2 / expected).sum() < 35  # chi-square with 9 degrees of freedom: 6e-5
    # two examples share a batch, and one example stays in its batch, as often as chance has it
    deviation = (0.1 * 0.9 / (epochs * (SIZES[0] - 1))) ** 0.5
    assert abs((first[:, 1:] == first[:, :-1]).mean() - 1 / BATCHES) < 5 * deviation
    assert abs((first[1:] == first[:-1]).mean() - 1 / BATCHES) < 5 * deviation


def test_assignment_fresh_per_query_and_attempt():
    training = training_of()
    rounds = range(BATCHES)
    one, other = batches_of(training, rounds), batches_of(training, rounds, index=1)
    assert one != other
    training.oracle.engine._sampler._randomness = replace(training.oracle.engine._randomness, attempt=7)
    assert batches_of(training, rounds) not in (one, other)
    assert batches_of(training_of(secret_seed=2), rounds) != one
    assert batches_of(training_of(seed=2), rounds) != one  # settings key the streams, too
    assert batches_of(training_of(), rounds) == one


def test_uniform_below_equals_exact_arithmetic():
    words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2000, dtype=np.int64)
    words = np.concatenate([words, np.array([-1, 0, 2**63 - 1, -(2**63)])])
    for n in (2, 3, 10, 1000, 2**20):
        exact = [((int(word) % 2**64) >> 11) * n >> 53 for word in words]
        assert uniform_below(words, n).tolist() == exact
    assert uniform_below(np.array([-1]), 7).tolist() == [6]


# --- what is charged


def test_run_epsilon_equals_whole_epochs():
    training = training_of()
    list(training)
    spent = training.result().spent
    bounds = allocation.epsilon_bounds(BATCHES, 1.0, ROUNDS // BATCHES, 1e-5)
    assert bounds.lower <= spent.epsilon <= bounds.upper * 1.001
    poisson = training_of(replace(PRIVACY, sampling=fp.Poisson(1 / BATCHES))).plan.spent()
    cyclic = training_of(replace(PRIVACY, sampling=fp.Cyclic(BATCHES))).plan.spent()
    assert spent.epsilon < poisson.epsilon < cyclic.epsilon
    records = training.ledger.records
    assert all(record.sampling == "allocation" and record.batches == BATCHES for record in records)
    assert len(records) == ROUNDS


def test_epoch_charged_once_at_first_release():
    records = [record(t) for t in range(2 * BATCHES)]
    costs = compute_costs(records, n_clients=2)
    paid = [t for t, cost in enumerate(costs) if cost.events != (FREE,)]
    assert paid == [0, BATCHES]
    one = account(records[:1], 2, 1e-5).epsilon
    assert account(records[:BATCHES], 2, 1e-5).epsilon == one == account(records[3:5], 2, 1e-5).epsilon
    assert account(records[: BATCHES + 1], 2, 1e-5).epsilon == account(records, 2, 1e-5).epsilon > one


@pytest.mark.parametrize("change", [{"index": 1}, {"attempt": 1}])
def test_other_assignment_charged_as_new_epoch(change: dict[str, int]):
    twice = [record(0), record(1, **change)]
    two_epochs = [record(0), record(BATCHES)]
    assert account(twice, 2, 1e-5).epsilon == account(two_epochs, 2, 1e-5).epsilon


def test_repeated_round_charged_as_new_epoch():
    """As in the records of two runs, one after the other: both epochs are charged."""
    run = [record(t) for t in range(BATCHES)]
    costs = compute_costs([*run, *run], n_clients=2)
    assert [t for t, cost in enumerate(costs) if cost.events != (FREE,)] == [0, BATCHES]
    assert account([*run, *run], 2, 1e-5).epsilon == account([record(t) for t in range(2 * BATCHES)], 2, 1e-5).epsilon
    accountant = Accountant(2, 1e-5)
    for each in (*run, *run):
        accountant.count(each)
    assert accountant.spent().epsilon == account([*run, *run], 2, 1e-5).epsilon


def test_search_trials_charged_separate_epochs():
    plan = training_of().plan
    settings = SearchSettings(trials=3)
    cost = compute_reserved_cost(settings, [plan], None, "search", "noise")
    together = compute_spending([compute_share(cost, TERMS)], TERMS)
    bounds = allocation.epsilon_bounds(BATCHES, 1.0, 3 * ROUNDS // BATCHES, 1e-5)
    assert bounds.lower <= together.epsilon <= bounds.upper * 1.001


def test_less_noise_within_epoch_raises():
    accountant = Accountant(2, 1e-5)
    accountant.count(record(0))
    accountant.count(record(1, noise_multiplier=1.1))
    with pytest.raises(PrivacyError, match="less noise than was assumed when its epoch"):
        accountant.count(record(2, noise_multiplier=0.9))
    assert accountant.n_records == 2
    accountant.count(record(BATCHES, noise_multiplier=0.9))


def test_epoch_charges_all_clients_at_start():
    cost_first = compute_costs([record(0, clients=(0,)), record(1, clients=(1,))], n_clients=3)
    assert cost_first[0].clients is None
    assert cost_first[1].events == (FREE,)
    with pytest.raises(
        ConfigError, match="random allocation with different noise multipliers for the clients needs all clients"
    ):
        compute_costs([record(0, clients=(0, 1), noise_multiplier=(1.0, 2.0))], n_clients=3)


def test_schedule_one_share_per_epoch():
    training = training_of(replace(PRIVACY, schedule=fp.Geometric(0.9)))
    multipliers = [record.noise_multiplier for record in training.plan.records]
    assert len(set(multipliers[:BATCHES])) == len(set(multipliers[BATCHES:])) == 1
    assert multipliers[BATCHES] == pytest.approx(multipliers[0] / 0.9**BATCHES)


def test_epsilon_target_met():
    training = training_of(fp.Privacy(epsilon=1.5, sampling=fp.Allocation(BATCHES), relation="add_remove"))
    list(training)
    assert 1.48 < training.result().spent.epsilon <= 1.5


def test_epsilon_limit_stops_before_epoch():
    limit = training_of(rounds=3 * BATCHES).plan.spent().epsilon * 0.99
    with pytest.warns(PromiseWarning, match="stop early, before its epsilon exceeds"):
        training = training_of(replace(PRIVACY, epsilon=limit), rounds=3 * BATCHES)
    assert len(list(training)) == 2 * BATCHES
    assert training.result().ended == "budget"
    assert training.result().spent.epsilon < limit


def test_group_epsilon_not_amplified():
    event = Event("gaussian", 4.0, "allocation", 1 / BATCHES)
    assert scale_to_group(event, 2) == Event("gaussian", 2.0)


def test_invalid_allocation_record_raises():
    """`rate` alone does not make a record one of random allocation."""
    with pytest.raises(ConfigError, match="batches"):
        record(0, batches=None)
    with pytest.raises(ConfigError, match="batches"):
        record(0, sampling="poisson")
    with pytest.raises(ConfigError, match=r"record\.rate"):
        account([record(0, rate=0.05)], 2, 1e-5)
    with pytest.raises(ConfigError, match="Gaussian"):
        account([record(0, mechanism="laplace", norm="l1")], 2, 1e-5)


def test_record_batches_round_trip():
    line = record(3).to_json()
    assert json.loads(line)["batches"] == BATCHES
    assert Record.from_json(line) == record(3)
    assert "batches" not in json.loads(record(3, sampling="poisson", batches=None).to_json())
    with pytest.raises(ValueError, match="batches"):
        Record.from_json(line.replace(f'"batches":{BATCHES}', '"batches":1'))


# --- strategies, trusts, clients


STRATEGIES: dict[str, Callable[[], fp.Strategy]] = {
    "local steps": lambda: fp.fedavg(0.1, local_steps=3),
    "svrg": lambda: fp.svrg(0.1, epoch_length=5),
    "admm": fp.inexact_admm,
    "scaffold": lambda: fp.scaffold(0.1, local_steps=2),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_draw_batches_by_allocation(name: str):
    privacy = replace(PRIVACY, epsilon=4.0, noise_multiplier=None)
    training = training_of(privacy, STRATEGIES[name]())
    list(training)
    result = training.result()
    assert result.spent.epsilon <= 4.0
    assert result.rounds == ROUNDS
    fine = training_of(replace(privacy, sampling=fp.Poisson(1 / BATCHES)), STRATEGIES[name]())
    assert len(training.ledger.records) == len(fine.plan.records)


TRUSTS: dict[str, Any] = {
    "local": fp.Local(),
    "pairwise": fp.Pairwise(colluders=0, ratio=1.0),
    "secure aggregation": fp.SecureAggregation(min_honest=2),
    "central": fp.Central(),
}


@pytest.mark.parametrize("trust", TRUSTS)
def test_batch_sizes_not_visible(trust: str):
    """Runs with different secret seeds have equal outputs, except for noisy values."""
    seen = list[Any]()
    for secret in (1, 2):
        training = training_of(replace(PRIVACY, trust=TRUSTS[trust]), secret_seed=secret)
        list(training)
        records = list(training.ledger.records)
        result = training.result()
        seen.append((records, result.spent, result.gradient_evaluations, result.releases, result.measures["backend"]))
        assert result.seconds == float(f"{result.seconds:.0e}")
    assert seen[0] == seen[1]
    sizes = [{len(batch[0]) for batch in batches_of(training_of(secret_seed=s), range(BATCHES))} for s in (1, 2)]
    assert sizes[0] != sizes[1]


def test_mean_divided_by_expected_batch_size():
    oracle = training_of().oracle
    expected = oracle.queries.expected_batch_size(PRIVACY.sampling, torch.tensor([400.0, 370.0]))
    assert expected.tolist() == [40.0, 37.0]


def test_client_unit_epsilon_equals_full_batch():
    both = [
        training_of(replace(PRIVACY, unit="client", sampling=sampling)).plan.spent().epsilon
        for sampling in (fp.Allocation(BATCHES), fp.FullBatch())
    ]
    assert both[0] == both[1]


def test_resume_within_epoch_epsilon_unchanged(tmp_path: Path):
    """Each example is in one batch of the epoch, and its price is that of one epoch."""
    whole = training_of()
    stopped = training_of(folder=tmp_path, checkpoint_every=2)
    rounds = iter(stopped)
    for _ in range(7):
        next(rounds)
    rounds.close()
    stopped.folder.close()  # pyright: ignore
    again = training_of(folder=tmp_path, checkpoint_every=2, resume=True)
    assert again.progress.round == 7
    for report in again:
        assert report.epsilon >= account(again.ledger.records, len(SIZES), 1e-5).epsilon * (1 - 1e-9)
    assert len(again.ledger.records) == len(whole.plan.records)
    assert again.result().spent.epsilon == whole.plan.spent().epsilon


# --- whole clients


CLIENT_TRUSTS = (fp.Central(cohort_rounds=5), fp.SecureAggregation(20, cohort_rounds=5))


def clients_in_turn(trust: Any, at: str = "message", **options: Any) -> fp.Training:
    data = [TensorDataset(torch.randn(3, 2), torch.arange(3) % 2) for _ in range(30)]
    clients = fp.make_clients(SoftmaxRegression(2, 2), nn.CrossEntropyLoss(), data)
    known = {"noise_multiplier": 1.0, "unit": "client", "relation": "add_remove"} | options
    return fp.Training(clients, fp.fedavg(0.5), fp.Privacy(trust=trust, noise_on=at, **known), rounds=10, secret_seed=1)


@pytest.mark.parametrize("at", ["message", "gradient"])
@pytest.mark.parametrize("trust", CLIENT_TRUSTS, ids=["central", "secure aggregation"])
def test_client_in_one_round_per_epoch(trust: Any, at: str):
    training = clients_in_turn(trust, at)
    draws, cohorts = training.oracle.engine._sampler, list[list[int]]()
    for t in range(10):
        drawn = draws.begin_round(t, torch.arange(30))
        assert drawn is not None
        cohorts.append(drawn.tolist())
    for epoch in (cohorts[:5], cohorts[5:]):
        assert sorted(client for cohort in epoch for client in cohort) == list(range(30))
    assert cohorts[:5] != cohorts[5:]
    list(training)
    bounds = allocation.epsilon_bounds(5, 1.0, 2, 1e-5)
    assert bounds.lower <= training.result().spent.epsilon <= bounds.upper * 1.001
    by_rate = clients_in_turn(fp.Central(cohort_rate=0.2), at).plan.spent()
    assert training.result().spent.epsilon < by_rate.epsilon
    assert "cohort_rounds=5" in str(training.plan.spent())


def test_records_hide_participants():
    records = [list(run(secret).ledger.records) for secret in (1, 2)]
    assert records[0] == records[1]
    assert all(record.clients is None for record in records[0])


def run(secret: int) -> fp.Training:
    training = clients_in_turn(fp.Central(cohort_rounds=5))
    training.oracle.engine._sampler._randomness = replace(training._identity.randomness, secret_seed=secret)
    list(training)
    return training


def test_cohort_rounds_invalid_settings_raise():
    with pytest.raises(ConfigError, match="cannot be combined with cohort_rate"):
        fp.Central(cohort_rate=0.1, cohort_rounds=10)
    with pytest.raises(ConfigError, match="set unit to 'client'"):
        fp.Privacy(epsilon=1, trust=fp.Central(cohort_rounds=10))
    with pytest.raises(ConfigError, match="Gaussian"):
        fp.Privacy(
            epsilon=1,
            delta=0,
            mechanism=fp.Laplace(),
            clip=fp.Clip(1, "l1"),
            unit="client",
            trust=fp.Central(cohort_rounds=10),
        )


# --- what is refused


def test_extension_within_epoch_raises():
    check_extended(PRIVACY, 30, before=20)
    with pytest.raises(ConfigError, match="within an epoch of random allocation"):
        check_extended(PRIVACY, 30, before=15)


def test_plan_warns_of_partial_epoch():
    (warning,) = training_of(rounds=13).plan.warnings([1000])
    assert "ends after 3 of 10 rounds" in warning
    assert "rounds=20 costs the same" in warning
    assert not training_of().plan.warnings([1000])


def test_allocation_unsupported_settings_raise():
    with pytest.raises(ConfigError, match="Gaussian"):
        fp.Privacy(epsilon=1, delta=0, mechanism=fp.Laplace(), clip=fp.Clip(1, "l1"), sampling=fp.Allocation(10))
    with pytest.raises(ConfigError, match=r"privacy\.sampling\.batches"):
        fp.Allocation(1)
    with pytest.raises(
        ConfigError, match=r"correlated noise .* needs batches in which the rounds of each example are fixed"
    ):
        training_of(replace(PRIVACY, noise=fp.BSR(4)))
