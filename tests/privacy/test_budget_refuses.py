"""What a lifetime budget refuses: promises that are weaker than its own, runs without a price, wrong terms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from budgets import budget, run

from fedpriv.errors import BudgetExhausted, ConfigError, LedgerError, PrivacyError
from fedpriv.privacy.budget import Budget


@pytest.mark.parametrize(
    ("terms", "wish", "said"),
    [
        ({"unit": "client"}, {}, "protects the privacy unit sample, but the budget requires the unit client"),
        (
            {"unit": "sample", "relation": "add_remove"},
            {"unit": "client", "relation": "add_remove"},
            "protects the privacy unit client, but the budget requires the unit sample",
        ),
        (
            {"relation": "add_remove"},
            {},
            "has the neighbouring relation replace_one, but the budget requires add_remove",
        ),
        (
            {},
            {"shared": "same blocks"},
            r"guarantees only replace_one\(same blocks\), which has conditions .*--invariants",
        ),
        ({"unit": "client"}, {"unit": "client", "shared": "sizes public"}, "sizes public"),
        ({"accountant": "gaussian"}, {"sampling": "poisson", "rate": 0.1}, "epsilon=inf"),
    ],
)
def test_weaker_guarantee_than_budget_raises(tmp_path: Path, terms: dict[str, str], wish: dict[str, object], said: str):
    with pytest.raises(PrivacyError, match=said):
        budget(tmp_path, **terms).reserve(run(5.0, "r", **wish))
    assert not Budget(tmp_path / "b.jsonl").balance().entries


def test_budget_with_old_name_of_blocks_accepts_run(tmp_path: Path):
    """Versions up to 0.4 wrote `same slots`."""
    old = budget(tmp_path, invariants="same slots")
    old.reserve(run(5.0, "r", shared="same blocks"))
    assert len(old.balance().entries) == 1


def test_exact_run_on_budget_raises(tmp_path: Path):
    exact = run(0.0, "r", mechanism="none", non_private="exact query results, no noise")
    with pytest.raises(BudgetExhausted, match=r"r has epsilon=inf \(exact query results, no noise\)"):
        budget(tmp_path).reserve(exact)


def test_uncovered_release_on_budget_raises(tmp_path: Path):
    with pytest.raises(PrivacyError, match="the optimality gap"):
        budget(tmp_path).reserve(replace(run(5.0, "r"), not_covered=("the optimality gap, exact",)))


def test_run_without_name_raises(tmp_path: Path):
    with pytest.raises(ConfigError, match="give the run a name of its own"):
        budget(tmp_path).reserve(replace(run(5.0, "r"), run_name=None))


def test_client_unit_other_clients_raises(tmp_path: Path):
    found = budget(tmp_path, unit="client")
    found.reserve(run(9.0, "three", unit="client"))
    with pytest.raises(PrivacyError, match="its runs have different numbers of clients"):
        found.reserve(run(9.0, "four", n_clients=4, unit="client"))


def test_return_more_than_reserved_raises(tmp_path: Path):
    found = budget(tmp_path, 3.0)
    found.reserve(run(5.0, "r", 3))
    with pytest.raises(PrivacyError, match="had not reserved"):
        found.close("r", "budget", run(4.0, "r", 1))
    with pytest.raises(PrivacyError, match="contains no reservation"):
        found.close("other", "rounds")


def test_second_reservation_of_run_raises(tmp_path: Path):
    found = budget(tmp_path, 3.0)
    found.reserve(run(5.0, "r"))
    with pytest.raises(PrivacyError, match="has a reservation"):
        found.check(run(5.0, "r"))
    with pytest.raises(PrivacyError, match="has a reservation"):
        found.reserve(run(5.0, "r"))


def test_invalid_budget_terms_raise(tmp_path: Path):
    for terms in ({"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 1.0}, {"unit": "row"}, {"accountant": "clt"}):
        with pytest.raises(ConfigError):
            budget(tmp_path, **terms)
    with pytest.raises(ConfigError, match="only pure epsilon"):
        budget(tmp_path, delta=0.0, accountant="gaussian")
    assert not (tmp_path / "b.jsonl").exists()


def test_existing_budget_file_raises(tmp_path: Path):
    budget(tmp_path)
    with pytest.raises(LedgerError, match="exists"):
        budget(tmp_path)


def test_missing_budget_file_raises(tmp_path: Path):
    with pytest.raises(LedgerError, match=r"fedpriv budget .* --epsilon"):
        Budget(tmp_path / "none.jsonl")
