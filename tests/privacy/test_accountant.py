"""The accountant: counting and reporting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_worlds import record

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting import bounds, rdp
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.record import Record

DELTA = 1e-5


def laplace(round_index: int = 0, **changes: Any) -> Record:
    return record(round_index, **{"mechanism": "laplace", "norm": "l1", **changes})


def test_empty_ledger_epsilon_zero() -> None:
    spent = account([], 3, DELTA)
    assert (spent.epsilon, spent.per_client) == (0.0, (0.0, 0.0, 0.0))
    assert str(spent) == "epsilon=0 (delta=1e-5, unit=sample, relation=replace_one, trust=local, accountant=pure)"


def test_gaussian_rounds_compose_exactly() -> None:
    spent = account([record(k) for k in range(100)], 2, DELTA)
    assert spent.epsilon == pytest.approx(4.3772, abs=5e-5)
    assert spent.accountant == "gaussian"
    assert (
        str(spent) == "epsilon=4.378 (delta=1e-5, unit=sample, relation=replace_one, trust=local, accountant=gaussian)"
    )


def test_laplace_rounds_use_tightest_bound() -> None:
    records = [laplace(k) for k in range(100)]
    spent = account(records, 1, DELTA)
    assert spent.epsilon == pytest.approx(4.2204, rel=1e-3)
    assert spent.accountant == "pld"
    assert account(records, 1, 0.0).epsilon == pytest.approx(10.0)
    assert account(records, 1, 0.0).accountant == "pure"
    assert account([replace(one, norm="l2") for one in records], 1, DELTA).accountant == "rdp"


def test_epsilon_by_sampling_and_relation() -> None:
    def cost(**changes: Any) -> float:
        return account(
            [record(k, noise_multiplier=1.0, rate=1 / 600, **changes) for k in range(2000)], 1, DELTA
        ).epsilon

    # noise multiplier 1 is a deviation of 2C when a record is replaced
    assert cost(sampling="poisson", relation="replace_one") == pytest.approx(0.249, rel=3e-3)
    assert cost(sampling="without_replacement") == pytest.approx(0.450, rel=3e-3)
    assert account(
        [record(k, noise_multiplier=2.0, rate=1 / 600, sampling="poisson", relation="add_remove") for k in range(2000)],
        1,
        DELTA,
    ).epsilon == pytest.approx(0.127, rel=4e-3)
    fixed = [laplace(k, noise_multiplier=1.0, rate=1 / 600, sampling="without_replacement") for k in range(2000)]
    assert account(fixed, 1, DELTA).epsilon == pytest.approx(0.278, abs=1e-3)
    # Laplace with a replaced record falls back on the general amplification bound
    assert account([replace(one, sampling="poisson") for one in fixed], 1, DELTA).epsilon == pytest.approx(
        0.278, abs=1e-3
    )
    assert cost(sampling="full", relation="replace_one") > 500
    assert account([record(rate=1.0, sampling="poisson")], 1, DELTA) == account([record()], 1, DELTA)
    assert account([record(rate=0.0, sampling="poisson")], 1, DELTA).epsilon == 0
    assert account([record(rate=0.0, sampling="poisson"), laplace()], 1, DELTA).epsilon < 0.1
    assert account([laplace(norm="l2", rate=0.1, sampling="poisson")], 1, DELTA).accountant == "rdp"


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": "without_replacement", "relation": "add_remove", "rate": 0.1},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"sampling": "poisson", "rate": 1.5},
        {"sampling": "poisson", "rate": math.nan},
        {"clients": (0, 7)},
        {"clients": (0, 0)},
        {"clients": (0, 1), "noise_multiplier": (1.0, 2.0, 3.0)},
        {"noise_multiplier": ()},
        {"mechanism": "gausian"},
        {"sampling": "shuffled"},
        {"relation": "add"},
        {"unit": "household"},
        {"norm": "linf"},
    ],
)
def test_invalid_record_raises(changes: dict[str, Any]) -> None:
    accountant = Accountant(3, DELTA)
    with pytest.raises(ConfigError):
        accountant.admit(record(**changes))
    assert accountant.spent() == account([], 3, DELTA)


@pytest.mark.parametrize("arguments", [(0, DELTA), (1, 1.0), (1, -0.1), (1, math.nan)])
def test_accountant_arguments_out_of_range_raise(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        Accountant(*arguments)


def test_client_epsilon_from_own_releases_only() -> None:
    accountant = Accountant(4, DELTA)
    accountant.admit(record(0, clients=(0, 2)))
    accountant.admit(record(1, clients=(2, 1), noise_multiplier=(5.0, 8.0)))
    quick = accountant.epsilon()
    alone = [
        account([record()], 1, DELTA).epsilon,
        account([record(noise_multiplier=8.0)], 1, DELTA).epsilon,
        account([record(), record(noise_multiplier=5.0)], 1, DELTA).epsilon,
        0.0,
    ]
    assert accountant.spent().per_client == pytest.approx(alone)
    assert quick == pytest.approx(alone)
    assert accountant.spent().epsilon == max(alone)


def test_per_client_noise_and_rate_values() -> None:
    same = [record(clients=None), record(noise_multiplier=(10.0, 10.0, 10.0)), record(clients=(2, 0, 1))]
    for one in same:
        assert account([one] * 3, 3, DELTA).per_client == account([record()] * 3, 3, DELTA).per_client
    rates = record(sampling="poisson", rate=(0.1, 0.2, 0.3), noise_multiplier=1.0)
    assert sorted(account([rates] * 5, 3, DELTA).per_client) == list(account([rates] * 5, 3, DELTA).per_client)
    both = replace(rates, noise_multiplier=(1.0, 1.0, 9.0))
    assert account([both] * 5, 3, DELTA).per_client[2] < account([rates] * 5, 3, DELTA).per_client[0]


kinds = st.sampled_from(
    [
        record(),
        laplace(),
        laplace(norm="l2"),
        record(sampling="poisson", rate=0.1),
        laplace(clients=(0,)),
        record(clients=(1,)),
    ]
)


@settings(max_examples=20)
@given(st.lists(kinds, max_size=6), kinds, st.randoms(use_true_random=False))
def test_epsilon_monotone_and_order_independent(records: list[Record], one: Record, random: Any) -> None:
    accountant = Accountant(2, DELTA)
    for each in records:
        accountant.admit(each)
    before, tight = accountant.epsilon(), accountant.spent()
    assert (np.array(tight.per_client) <= before + 1e-9).all()
    accountant.admit(one)
    assert (accountant.epsilon() >= before - 1e-12).all()
    shuffled = [*records, one]
    random.shuffle(shuffled)
    assert account(shuffled, 2, DELTA).per_client == pytest.approx(accountant.spent().per_client)


def test_exact_release_epsilon_infinite() -> None:
    exact = record(mechanism="none", noise_multiplier=0.0, non_private="privacy.noise_on is none")
    spent = account([record(), exact], 2, DELTA)
    assert str(spent) == (
        "epsilon=inf (not private: privacy.noise_on is none) "
        "(delta=1e-5, unit=sample, relation=replace_one, trust=local, accountant=none)"
    )
    assert spent.non_private == ("privacy.noise_on is none",)
    only_first = account([replace(exact, clients=(0,)), record()], 2, DELTA)
    assert math.isinf(only_first.per_client[0])
    assert math.isfinite(only_first.per_client[1])
    assert account([record(noise_multiplier=0.0)], 1, DELTA).non_private == ("a query result without noise",)


def test_gaussian_at_delta_zero_epsilon_infinite() -> None:
    assert math.isinf(account([record()], 1, 0.0).epsilon)
    assert "no finite bound at delta=0" in str(account([record()], 1, 0.0))


def test_mixed_units_or_relations_raise() -> None:
    accountant = Accountant(1, DELTA)
    accountant.admit(record())
    for changes in ({"unit": "client"}, {"relation": "add_remove"}):
        with pytest.raises(PrivacyError, match="cannot be added"):
            accountant.admit(record(**changes))
    accountant.admit(record(trust="secure_aggregation(min_honest=5)"))
    assert accountant.spent().trust == "local+secure_aggregation(min_honest=5)"


def history_of(records: list[Record]) -> dict[Any, int]:
    from fedpriv.privacy.accounting.events import compute_cost

    result: dict[Any, int] = {}
    for one in records:
        event = compute_cost(one, 1).events[0]
        result[event] = result.get(event, 0) + 1
    return result


def rdp_of(records: list[Record]) -> float:
    return float(rdp.compute_epsilons(rdp.compute_total(history_of(records)), DELTA))


def test_sampled_renyi_curve_cached() -> None:
    rdp.compute_divergences.cache_clear()
    accountant = Accountant(5, DELTA)
    for k in range(50):
        accountant.admit(record(k, sampling="poisson", rate=0.01))
    assert rdp.compute_divergences.cache_info().misses == 1


def test_many_noise_levels_bucketed_upper_bound() -> None:
    rdp.compute_divergences.cache_clear()
    levels = [10 * 1.0002**k for k in range(320)]
    run = [laplace(k, sampling="without_replacement", rate=0.1, noise_multiplier=b) for k, b in enumerate(levels)]
    accountant = Accountant(1, DELTA)
    for one in run:
        accountant.admit(one)
    assert rdp.compute_divergences.cache_info().misses < 300
    exact = rdp_of(run)
    assert exact <= accountant.epsilon()[0] <= 1.02 * exact


def test_histories_beyond_cap_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [laplace(k, clients=tuple(range(k + 1)), noise_multiplier=30.0) for k in range(5) for _ in range(20)]
    tight = account(records, 5, DELTA)
    monkeypatch.setattr(bounds, "MOST_TIGHT", 2)
    capped = account(records, 5, DELTA)
    assert capped.epsilon == tight.epsilon
    assert (np.array(capped.per_client) >= np.array(tight.per_client)).all()


def test_printed_epsilon_rounded_up() -> None:
    assert [round_up(x) for x in (3.2, 4.37718, 0.000123451, 7845.21, 12345.0, 2.0)] == [
        "3.2",
        "4.378",
        "0.0001235",
        "7846",
        "12350",
        "2",
    ]
    spent = PrivacySpent(3.2, 1e-5, "sample", "replace_one", "local", "pld", (3.2,), ())
    assert str(spent) == "epsilon=3.2 (delta=1e-5, unit=sample, relation=replace_one, trust=local, accountant=pld)"


@given(st.floats(1e-9, 1e9))
def test_printed_epsilon_at_least_exact(epsilon: float) -> None:
    assert epsilon <= float(round_up(epsilon)) <= epsilon * 1.0011
