"""The filter of a plan: what is planned is admitted once, as far as the limit allows it, and nothing else is."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_worlds import record

from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError
from fedpriv.privacy.accounting import pld
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.calibration import calibrate
from fedpriv.privacy.accounting.events import History, compute_cost
from fedpriv.privacy.accounting.milestones import Milestones
from fedpriv.privacy.accounting.plan_filter import PlanFilter, UnplannedRelease, covers
from fedpriv.privacy.record import Record

DELTA = 1e-5


def laplace(round_index: int = 0, **changes: Any) -> Record:
    return record(round_index, **{"mechanism": "laplace", "norm": "l1", **changes})


def filter_of(plan: list[Record], n_clients: int, limit: float | None = None, delta: float = DELTA) -> PlanFilter:
    return PlanFilter(plan, Accountant(n_clients, delta), limit)


def admitted(plan_filter: PlanFilter, records: list[Record]) -> int:
    """How many of the records are admitted before the limit refuses one."""
    for count, release in enumerate(records):
        try:
            plan_filter.admit(release)
        except BudgetExhausted:
            return count
    return len(records)


def scheduled(n: int = 40) -> list[Record]:
    plan = [laplace(k, noise_multiplier=1.03**k, clients=(0, 1)) for k in range(n)]
    factor = calibrate(plan, 2, 2.0, DELTA)
    return [replace(release, noise_multiplier=release.noise_multiplier * factor) for release in plan]


# --- what the plan has ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 100.0])
@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 9.9},
        {"round": 7},
        {"index": 1},
        {"query": "message"},
        {"mechanism": "gaussian", "norm": "l2"},
        {"bound": 1.1},
        {"sampling": "poisson", "rate": 0.5},
        {"trust": "central"},
        {"norm": "l2"},
        {"mechanism": "none", "noise_multiplier": 0.0, "non_private": "exact"},
    ],
    ids=str,
)
def test_unplanned_release_raises(changes: dict[str, Any], limit: float | None) -> None:
    plan = [laplace(k) for k in range(3)]
    plan_filter = filter_of(plan, 2, limit)
    with pytest.raises(UnplannedRelease, match="plan has no such query"):
        plan_filter.admit(replace(plan[0], **changes))
    assert plan_filter.accountant.n_records == 0
    plan_filter.admit(plan[0])


def test_planned_release_admitted_once() -> None:
    plan = [laplace(0), laplace(0), laplace(1)]
    plan_filter = filter_of(plan, 1)
    plan_filter.admit(plan[0])
    plan_filter.admit(plan[1])
    with pytest.raises(UnplannedRelease, match="released already"):
        plan_filter.admit(plan[0])
    plan_filter.admit(plan[2])


def test_releases_within_plan_admitted() -> None:
    """With more noise, a smaller bound or fewer clients than planned."""
    plan = [laplace(k) for k in range(4)]
    plan_filter = filter_of(plan, 2, 100.0)
    plan_filter.admit(replace(plan[0], noise_multiplier=11.0))
    plan_filter.admit(replace(plan[1], bound=0.5))
    plan_filter.admit(replace(plan[2], clients=(1,)))
    plan_filter.admit(replace(plan[3], noise_multiplier=plan[3].noise_multiplier * (1 - 1e-12)))  # the last bits


def test_per_client_noise_covers_more_noise_only() -> None:
    planned = _cost(laplace(noise_multiplier=(8.0, 9.0)))
    assert covers(planned, _cost(laplace(noise_multiplier=(8.0, 9.5))))
    assert covers(planned, _cost(laplace(noise_multiplier=9.0)))
    assert not covers(planned, _cost(laplace(noise_multiplier=8.5)))
    assert not covers(planned, _cost(laplace(noise_multiplier=(9.0, 8.0))))
    assert not covers(planned, _cost(laplace(clients=(1,), noise_multiplier=9.0)))


def test_release_covers_subset_of_clients_only() -> None:
    to_all, to_one = _cost(laplace()), _cost(laplace(clients=(0,)))
    assert covers(to_all, _cost(laplace(clients=(1,))))
    assert not covers(to_all, _cost(laplace(clients=(1,), noise_multiplier=9.0)))
    assert covers(to_all, _cost(laplace(noise_multiplier=(10.0, 11.0))))
    assert not covers(to_all, _cost(laplace(noise_multiplier=(10.0, 9.0))))
    assert covers(to_one, _cost(laplace(clients=(0,))))
    assert not covers(to_one, _cost(laplace(clients=(1,))))
    assert not covers(to_one, _cost(laplace()))


def _cost(release: Record) -> Any:
    return compute_cost(release, 2)


# --- the limit --------------------------------------------------------------------------------------------------------

KINDS = [
    {},
    {"mechanism": "laplace", "norm": "l1"},
    {"mechanism": "laplace", "norm": "l2"},
    {"sampling": "poisson", "rate": 0.05},
    {"sampling": "poisson", "rate": 0.05, "mechanism": "laplace", "norm": "l1"},
    {"sampling": "without_replacement", "rate": 0.05},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_plan_longer_than_limit_cut_at_limit(kind: dict[str, Any]) -> None:
    factor = calibrate([record(k, **{**kind, "noise_multiplier": 1.0}) for k in range(10)], 3, 2.0, DELTA)
    plan = [record(k, **{**kind, "noise_multiplier": factor}) for k in range(100)]
    plan_filter = filter_of(plan, 3, 2.0)
    assert admitted(plan_filter, plan) == 10
    before = plan_filter.accountant.spent()
    assert 1.99 < before.epsilon <= 2.0
    with pytest.raises(BudgetExhausted, match=r"epsilon=2\.0 .* 2\.\d+ by"):
        plan_filter.admit(plan[10])
    # releases that were left out, or had more noise, do not buy others: which ones there are was fixed beforehand
    with pytest.raises(BudgetExhausted):
        plan_filter.admit(replace(plan[11], noise_multiplier=1e6))
    assert plan_filter.accountant.spent() == before


def test_skipped_releases_free_no_budget() -> None:
    """Otherwise the releases would depend on results in a way that no composition theorem here covers."""
    plan = [laplace(k, noise_multiplier=20.0) for k in range(100)]
    whole = admitted(filter_of(plan, 1, 1.0), plan)
    plan_filter = filter_of(plan, 1, 1.0)
    plan_filter.admit(plan[0])
    assert 0 < whole < 90 and admitted(plan_filter, plan[whole - 3 :]) == 3


def test_limit_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = scheduled()
    calls: list[float] = []
    real = pld.epsilon
    monkeypatch.setattr(
        pld, "epsilon", lambda history, delta, **options: calls.append(delta) or real(history, delta, **options)
    )
    plan_filter = filter_of(run, 2, 2.0)
    assert admitted(plan_filter, run) == len(run)
    assert len(calls) == 1
    calls.clear()
    known = PlanFilter(run, Accountant(2, DELTA), 2.0, fits=True)
    assert admitted(known, run) == len(run)
    assert not calls


def test_plan_above_limit_cut_by_tight_bound() -> None:
    run = scheduled()
    plan_filter = filter_of(run, 2, 1.0)
    count = admitted(plan_filter, run)
    assert 0 < count < len(run)
    assert account(run[:count], 2, DELTA).epsilon <= 1.0 < account(run[: count + 1], 2, DELTA).epsilon


def test_disjoint_cohorts_spend_limit_separately() -> None:
    first = [laplace(k, clients=(0,)) for k in range(100)]
    second = [laplace(k, clients=(1,)) for k in range(100, 200)]
    alone = admitted(filter_of([laplace(k) for k in range(100)], 1, 1.0), [laplace(k) for k in range(100)])
    plan_filter = filter_of([*first[:alone], *second], 2, 1.0)
    assert admitted(plan_filter, first[:alone]) == alone
    assert admitted(plan_filter, second) == alone
    assert plan_filter.accountant.spent().epsilon <= 1.0


def test_delta_zero_uses_pure_epsilon() -> None:
    run = [laplace(k) for k in range(50)]
    assert admitted(filter_of(run, 1, 1.05, delta=0.0), run) == 10
    assert admitted(filter_of([record()], 1, 1.0, delta=0.0), [record()]) == 0


def test_exact_release_exceeds_every_limit() -> None:
    exact = record(mechanism="none", noise_multiplier=0.0, non_private="privacy.noise_on is none")
    with pytest.raises(BudgetExhausted, match="infinite"):
        filter_of([exact], 1, 5.0).admit(exact)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_limit_out_of_range_raises(limit: float) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        filter_of([laplace()], 1, limit)


# --- what was released before, and by others --------------------------------------------------------------------------


def test_earlier_attempt_counted_in_addition_to_plan() -> None:
    plan = [laplace(k, noise_multiplier=20.0, attempt=0) for k in range(30)]
    limit = account(plan, 1, DELTA).epsilon * 1.0001
    again = PlanFilter(plan, Accountant(1, DELTA), limit, attempt=7, fits=True)
    for release in plan[:20]:
        again.count(release)
    # it goes on from the tenth round: rounds 10 to 19 are released a second time, so the last ten no longer fit
    coming = [replace(release, attempt=7) for release in plan[10:]]
    assert admitted(again, coming) == 10
    assert again.accountant.spent().epsilon <= limit * (1 + 1e-6)


def test_resumed_run_uses_rest_of_plan() -> None:
    plan = [laplace(k) for k in range(5)]
    plan_filter = filter_of(plan, 1, account(plan, 1, DELTA).epsilon * 1.001)
    for release in plan[:3]:
        plan_filter.count(release)
    with pytest.raises(UnplannedRelease):
        plan_filter.admit(plan[1])
    assert admitted(plan_filter, plan[3:]) == 2


def test_plans_with_one_accountant_share_limit() -> None:
    accountant = Accountant(1, DELTA)
    first, second = (
        [laplace(k, query=name, noise_multiplier=20.0) for k in range(50)] for name in ("gradient", "message")
    )
    filters = [PlanFilter(first, accountant, 1.0), PlanFilter(second, accountant, 1.0)]
    for one, other in zip(first, second, strict=True):
        for plan_filter, release in ((filters[0], one), (filters[1], other)):
            with contextlib.suppress(BudgetExhausted):
                plan_filter.admit(release)
    assert accountant.n_records > 10
    assert 0.95 < accountant.spent().epsilon <= 1.0


def test_abandoned_rounds_return_budget() -> None:
    plan = [laplace(k, noise_multiplier=20.0) for k in range(100)]
    whole = admitted(filter_of(plan, 1, 1.0), plan)
    plan_filter = filter_of(plan, 1, 1.0)
    plan_filter.admit(plan[0])
    plan_filter.leave_out(range(1, 11))
    with pytest.raises(UnplannedRelease):
        plan_filter.admit(plan[5])
    assert admitted(plan_filter, plan[11:]) == whole - 1


def test_release_of_other_unit_raises() -> None:
    plan_filter = filter_of([laplace()], 1)
    with pytest.raises(PrivacyError, match="the plan has no such query"):
        plan_filter.admit(laplace(unit="client"))
    plan_filter.count(laplace(0, query="message"))
    with pytest.raises(PrivacyError, match="cannot be added"):
        plan_filter.count(laplace(unit="client"))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.3, 3.0))
def test_limit_holds_for_random_releases(seed: int, limit: float) -> None:
    """Any order, any subset, any noise, repeated and unplanned releases, other attempts on record."""
    draws = random.Random(seed)
    plan = [
        record(
            k,
            **{**draws.choice(KINDS), "noise_multiplier": draws.uniform(4, 30)},
            clients=draws.choice([None, (0,), (0, 2)]),
        )
        for k in range(25)
    ]
    plan_filter = filter_of(plan, 3, limit)
    for _ in range(60):
        release = draws.choice(plan)
        release = replace(release, noise_multiplier=release.noise_multiplier * draws.choice([0.8, 1.0, 1.5]))
        try:
            plan_filter.admit(release)
        except PrivacyError:
            continue
    assert plan_filter.accountant.spent().epsilon <= limit


# --- reports ----------------------------------------------------------------------------------------------------------


def test_milestones_few_upper_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases a round; the rounds between two milestones have the epsilon of the next one."""
    plan = [laplace(k, index=i) for k in range(100) for i in range(2)]
    are_rough: list[bool] = []
    real = pld.epsilon

    def counted(history: History, delta: float, *, rough: bool = False) -> float:
        are_rough.append(rough)
        return real(history, delta, rough=rough)

    monkeypatch.setattr(pld, "epsilon", counted)
    milestones = Milestones(plan, 1, DELTA)
    epsilons = [milestones.epsilon(rounds) for rounds in range(1, 101)]
    assert len(are_rough) <= 12
    assert are_rough[-1] is False and all(are_rough[:-1])
    for rounds in (1, 7, 50, 100):
        assert epsilons[rounds - 1] >= account(plan[: 2 * rounds], 1, DELTA).epsilon * (1 - 1e-9)
    assert epsilons[-1] == account(plan, 1, DELTA).epsilon
    assert epsilons == sorted(epsilons)
