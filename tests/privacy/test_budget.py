"""What runs cost a lifetime budget together, against closed forms and an independent distribution."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from budgets import DELTA, budget, delta_of, in_new_folder, mu_of, run
from dp_accounting.pld import privacy_loss_distribution as dpa
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st
from scipy import optimize

from fedpriv.errors import BudgetExhausted
from fedpriv.privacy.budget import AT_WORK, Budget


def epsilon_of(mu: float) -> float:
    return optimize.brentq(lambda epsilon: delta_of(mu, epsilon) - DELTA, 0, 400)


def test_three_runs_of_epsilon_1_cost_1_84(tmp_path: Path):
    found, noise = budget(tmp_path, 1.84), 1 / mu_of(1.0)
    for number in range(3):
        found.reserve(run(noise, f"r{number}"))
    balance = found.balance()
    assert balance.spent.epsilon == pytest.approx(1.835, abs=1e-3)
    assert [round(one.epsilon, 6) for one in balance.entries] == [1, 1, 1]
    with pytest.raises(
        BudgetExhausted, match=r"b\.jsonl allows epsilon=1\.84 .* 1\.835 is spent by 3 runs, r3 costs epsilon 1"
    ):
        found.reserve(run(noise, "r3"))
    assert len(found.balance().entries) == 3


@given(st.lists(st.tuples(st.floats(0.5, 30), st.integers(1, 40)), min_size=1, max_size=8))
@tried(max_examples=15)
def test_gaussian_runs_cost_root_sum_of_squares(runs: list[tuple[float, int]]):
    found = in_new_folder(1000.0)
    for number, (noise, rounds) in enumerate(runs):
        found.reserve(run(noise, f"r{number}", rounds))
    known = epsilon_of(math.sqrt(sum(rounds / noise**2 for noise, rounds in runs)))
    spent, alone = found.balance().spent.epsilon, [one.epsilon for one in found.balance().entries]
    assert spent == pytest.approx(known, rel=1e-6)
    assert max(alone) <= spent <= sum(alone) + 1e-9


@given(st.lists(st.floats(0.05, 1.5), min_size=1, max_size=12), st.floats(0.2, 3))
@tried(max_examples=40)
def test_pure_epsilons_add_up_to_limit(epsilons: list[float], limit: float):
    found, total = in_new_folder(limit, delta=0.0), 0.0
    for number, epsilon in enumerate(epsilons):
        wish = run(1 / epsilon, f"r{number}", mechanism="laplace", norm="l1")
        if total + epsilon <= limit * (1 - 1e-9):
            found.reserve(wish)
            total += epsilon
        elif total + epsilon > limit * (1 + 1e-9):
            with pytest.raises(BudgetExhausted):
                found.reserve(wish)
    balance = found.balance()
    assert balance.spent.epsilon == pytest.approx(total, rel=1e-9)
    assert balance.spent.epsilon <= limit
    assert balance.left <= limit - total + 1e-9
    assert balance.left >= limit - total - limit / 1000


def test_sampled_runs_cost_equals_dp_accounting(tmp_path: Path):
    found = budget(tmp_path, 5.0, relation="add_remove")
    changes = {"sampling": "poisson", "relation": "add_remove"}
    found.reserve(run(1.1, "one", 200, rate=0.02, **changes))
    found.reserve(run(0.9, "other", 100, rate=0.01, **changes))
    parts = [
        dpa.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=2e-4).self_compose(count)
        for noise, rate, count in ((1.1, 0.02, 200), (0.9, 0.01, 100))
    ]
    assert found.balance().spent.epsilon == pytest.approx(
        parts[0].compose(parts[1]).get_epsilon_for_delta(DELTA), rel=1e-3
    )


def test_balance_left_is_largest_fitting_epsilon(tmp_path: Path):
    found = budget(tmp_path, 3.0)
    found.reserve(run(1 / mu_of(2.0), "first"))
    left = found.balance().left
    assert left == pytest.approx(epsilon_of(math.sqrt(mu_of(3.0) ** 2 - mu_of(2.0) ** 2)), abs=0.002)
    with pytest.raises(BudgetExhausted, match=r"up to epsilon=2\.\d+ still fits"):
        found.check(run(1 / mu_of(left + 0.03), "too much"))
    found.reserve(run(1 / mu_of(left), "second"))
    with pytest.raises(BudgetExhausted, match="costs epsilon 1"):
        found.check(run(1 / mu_of(1.0), "third"))


def test_exhausted_error_epsilon_fits(tmp_path: Path):
    found = budget(tmp_path, 3.0)
    found.reserve(run(1 / mu_of(2.5), "first"))
    left = found.balance().left
    named = math.floor(left * 100) / 100  # rounded down
    assert left - named > 0.005  # there is something to round
    with pytest.raises(BudgetExhausted, match=rf"up to epsilon={named:g} still fits"):
        found.check(run(1 / mu_of(left + 0.03), "too much"))
    found.check(run(1 / mu_of(named), "as named"))


def test_stronger_guarantees_converted_to_budget(tmp_path: Path):
    found = budget(tmp_path, 9.0)
    found.reserve(run(4.0, "removes", relation="add_remove"))  # to replace is to remove and to add: half the noise
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(1 / 2), rel=1e-6)
    found.reserve(run(5.0, "clients", unit="client", shared="sizes public"))
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 2, 1 / 5)), rel=1e-6)


def test_runs_of_unknown_clients_charged_worst_case(tmp_path: Path):
    found = budget(tmp_path, 9.0)
    found.reserve(run(3.0, "a", clients=(0,)))
    found.reserve(run(4.0, "b", clients=(2,)))
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 3, 1 / 4)), rel=1e-6)
    same = Budget.create(tmp_path / "same.jsonl", epsilon=9.0, delta=DELTA)
    same.reserve(replace(run(3.0, "a", clients=(0,)), data="d"))
    same.reserve(replace(run(4.0, "b", clients=(2,)), data="d"))
    assert same.balance().spent.epsilon == pytest.approx(epsilon_of(1 / 3), rel=1e-6)


def test_earlier_version_data_digest_not_trusted(tmp_path: Path):
    """Earlier versions identified data by a digest of the configuration alone."""
    found = budget(tmp_path, 9.0)
    found.reserve(replace(run(3.0, "a", clients=(0,)), data="0" * 32))
    found.reserve(replace(run(4.0, "b", clients=(2,)), data="0" * 32))
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 3, 1 / 4)), rel=1e-6)


def test_unused_reservation_returned_at_limit(tmp_path: Path):
    found, whole = budget(tmp_path, 3.0), run(5.0, "r", 10)
    found.reserve(whole)
    found.close("r", "budget", replace(whole, records=whole.records[:4]))
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(2 / 5), rel=1e-6)
    assert found.balance().entries[0].returned
    found.close("r", "budget", replace(whole, records=[]))  # a second end changes nothing
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(2 / 5), rel=1e-6)


def test_reservation_kept_when_stopped_by_metric(tmp_path: Path):
    found, whole = budget(tmp_path, 3.0), run(5.0, "r", 10)
    found.reserve(whole)
    before = found.balance().spent.epsilon
    assert found.balance().entries[0].state == AT_WORK
    found.close("r", "metric")
    assert found.balance().spent.epsilon == before
    assert (found.balance().entries[0].state, found.balance().entries[0].returned) == ("metric", False)


@pytest.mark.parametrize(("accountant", "said"), [("gaussian", "for any choice of the runs"), (None, "did not depend")])
def test_balance_states_assumptions(tmp_path: Path, accountant: str | None, said: str):
    assert said in budget(tmp_path, accountant=accountant).balance().holds
