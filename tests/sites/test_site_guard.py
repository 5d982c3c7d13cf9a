"""A site admits the records of its plan at the planned privacy cost or less, within its own budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sites_in_memory import NAMES, config_of, public_info

from fedpriv.errors import BudgetExhausted, PrivacyError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.plan_filter import UnplannedRelease
from fedpriv.privacy.record import Record
from fedpriv.sites import SiteDescriptor, absence_notice, propose
from fedpriv.sites.agreement import new_key, public_key
from fedpriv.sites.plan_filter import SitePlanFilter, single_site_record
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_accountant import SiteAccountant

PAIRS = "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}"


def keys() -> dict[str, str]:
    signing = absence_notice.public_key(absence_notice.new_key()).hex()
    return {"public_key": f"x25519:{public_key(new_key()).hex()}", "signing_key": f"ed25519:{signing}"}


def terms_of(*overrides: str, sizes: tuple[int, ...] = (300, 300, 300, 300)) -> ResolvedPlan:
    config = config_of("strategy={name: fedavg, learning_rate: .5}", *overrides)
    cards = [
        SiteDescriptor(name=name, size=size, size_declared=False, **keys())
        for name, size in zip(NAMES, sizes, strict=True)
    ]
    return ResolvedPlan.of(propose(config, cards, public_info(config)))


def guard_of(
    resolved_plan: ResolvedPlan, epsilon: float = 100.0, earlier: list[Record] | None = None
) -> SitePlanFilter:
    accountant = SiteAccountant(epsilon, 1e-5, {"another plan": earlier or []})
    guard = SitePlanFilter(resolved_plan, 0, accountant)
    accountant.add_plan(resolved_plan.hash, guard.planned)
    return guard


@pytest.fixture(scope="module")
def resolved_plan() -> ResolvedPlan:
    return terms_of()


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 1.0},
        {"bound": 2.0},
        {"round": 4},
        {"index": 1},
        {"query": "message"},
        {"mechanism": "laplace"},
        {"mechanism": "none", "non_private": "exact"},
        {"unit": "client"},
        {"relation": "add_remove"},
        {"sampling": "poisson", "rate": 0.5},
        {"trust": "central"},
        {"shared": "everything"},
    ],
    ids=str,
)
def test_unplanned_record_raises(resolved_plan: ResolvedPlan, change: dict[str, Any]) -> None:
    guard, record = guard_of(resolved_plan), resolved_plan.plan.records[1]
    with pytest.raises(UnplannedRelease):
        guard.admit(replace(record, **change))
    guard.admit(record)
    guard.admit(replace(resolved_plan.plan.records[2], noise_multiplier=1e3, bound=0.1, attempt=7))


def test_record_with_fewer_pairs_raises() -> None:
    resolved_plan = terms_of(PAIRS)
    guard, record = guard_of(resolved_plan), resolved_plan.plan.records[0]
    with pytest.raises(UnplannedRelease):
        guard.admit(replace(record, clients=(0, 1)))
    with pytest.raises(UnplannedRelease):
        guard.admit(replace(record, clients=(1, 2, 3)))
    guard.admit(record)


@pytest.mark.parametrize("overrides", [(), (PAIRS,), ("privacy.sampling={fixed_size: {size: 50}}",)], ids=str)
def test_single_site_epsilon_matches_whole_ledger(overrides: tuple[str, ...]) -> None:
    resolved_plan = terms_of(*overrides, sizes=(100, 200, 400, 800))
    whole = account(resolved_plan.plan.records, 4, 1e-5)
    for number in range(4):
        own = account([single_site_record(record, number, 4) for record in resolved_plan.plan.records], 1, 1e-5)
        assert own.epsilon == pytest.approx(whole.per_client[number], rel=1e-9)


def test_site_budget_shared_by_federations(resolved_plan: ResolvedPlan) -> None:
    records = resolved_plan.plan.records
    mine = [single_site_record(record, 0, 4) for record in records]
    limit = account(mine + mine[:2], 1, 1e-5).epsilon * 1.001
    guard = guard_of(resolved_plan, limit, mine)
    for record in records[:2]:
        guard.admit(record)
    with pytest.raises(BudgetExhausted):
        guard.admit(records[2])
    assert guard._accountant.spent().epsilon <= limit
    with pytest.raises(PrivacyError, match="cannot be added"):
        guard_of(resolved_plan, 100.0, [replace(mine[0], unit="client")])
