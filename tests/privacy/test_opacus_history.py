"""Opacus' histories as costs and budgets of fedpriv, and fedpriv's ledgers as histories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import DIGITS, SMALL, error_line
from commands import fedpriv as command
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedpriv
from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError
from fedpriv.privacy.record import Record

DELTA = 1e-5
HISTORY = [(1.1, 0.02, 400), (2.0, 0.1, 30)]
RECORD = Record(0, "gradient", 0, "gaussian", 1.1, "sample", "add_remove", sampling="poisson", rate=0.02)


def epsilon_of_opacus(history: list[tuple[float, float, int]]) -> float:
    accountants = pytest.importorskip("opacus.accountants")
    accountant = accountants.create_accountant("prv")
    accountant.history = history
    return accountant.get_epsilon(DELTA, eps_error=1e-3)


def test_history_epsilon_equals_opacus():
    cost = fedpriv.from_opacus(HISTORY, "earlier", poisson_sampling=True)
    spent = fedpriv.total([cost], delta=DELTA)
    assert spent.epsilon == pytest.approx(epsilon_of_opacus(HISTORY), rel=0.01)
    assert (spent.unit, spent.relation) == ("sample", "add_remove(sizes public)")


def test_from_opacus_accepts_engine_accountant_state():
    opacus = pytest.importorskip("opacus")
    engine = opacus.PrivacyEngine(accountant="rdp")
    for _ in range(7):
        engine.accountant.step(noise_multiplier=1.5, sample_rate=0.25)
    forms: list[Any] = [engine, engine.accountant, engine.accountant.state_dict(), engine.accountant.history]
    costs = [fedpriv.from_opacus(form, "earlier", poisson_sampling=True) for form in forms]
    assert len({cost.run_name for cost in costs}) == 1
    assert all(cost.records == costs[0].records and len(cost.records) == 7 for cost in costs)


def test_opacus_history_round_trip():
    cost = fedpriv.from_opacus(HISTORY, "earlier", poisson_sampling=True)
    state = fedpriv.to_opacus(cost.records, "rdp")
    assert sorted(state["history"]) == sorted(HISTORY)
    accountants = pytest.importorskip("opacus.accountants")
    accountant = accountants.create_accountant("rdp")
    accountant.load_state_dict(state)
    assert accountant.get_epsilon(DELTA) > fedpriv.total([cost], delta=DELTA).epsilon


def test_opacus_history_charged_to_budget_once(tmp_path: Path):
    path = tmp_path / "b.jsonl"
    terms: dict[str, Any] = {"delta": DELTA, "relation": "add_remove", "invariants": "sizes public"}
    budget = fedpriv.Budget.create(path, epsilon=epsilon_of_opacus(HISTORY) + 0.5, **terms)
    cost = fedpriv.from_opacus(HISTORY, "earlier", poisson_sampling=True)
    budget.reserve(cost)
    balance = budget.balance()
    assert balance.spent.epsilon == pytest.approx(epsilon_of_opacus(HISTORY), rel=0.01)
    assert [entry.run for entry in balance.entries] == ["earlier"]
    with pytest.raises(PrivacyError, match="earlier already has a reservation"):
        budget.reserve(cost)
    with pytest.raises(BudgetExhausted):
        budget.reserve(fedpriv.from_opacus(HISTORY, "another", poisson_sampling=True))


def test_replace_one_budget_charges_opacus_more(tmp_path: Path):
    budget = fedpriv.Budget.create(tmp_path / "b.jsonl", epsilon=50.0, delta=DELTA)
    budget.reserve(fedpriv.from_opacus(HISTORY, "earlier", poisson_sampling=True))
    assert budget.balance().spent.epsilon > 1.5 * epsilon_of_opacus(HISTORY)


def test_shuffled_batches_raise():
    with pytest.raises(PrivacyError, match="shuffled"):
        fedpriv.from_opacus(HISTORY, "earlier", poisson_sampling=False)


def test_history_without_noise_epsilon_infinite():
    cost = fedpriv.from_opacus([(0.0, 0.1, 5)], "earlier", poisson_sampling=True)
    assert fedpriv.total([cost], delta=DELTA).epsilon == float("inf")


@pytest.mark.parametrize(
    "history",
    [
        [],
        {},
        {"history": []},
        "prv",
        [(1.0, 0.1)],
        [(1.0, 0.0, 5)],
        [(1.0, 1.5, 5)],
        [(-1.0, 0.1, 5)],
        [(1.0, 0.1, 2.5)],
        [("a", 0.1, 5)],
        [(float("nan"), 0.1, 5)],
        [(1.0, 0.1, 0)],
        [(1.0, 0.1, 10**8)],
        3,
    ],
)
def test_invalid_history_raises(history: Any):
    with pytest.raises(ConfigError, match="accountant"):
        fedpriv.from_opacus(history, "earlier", poisson_sampling=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"relation": "replace_one"}, "relation=replace_one"),
        ({"unit": "client"}, "unit=client"),
        ({"mechanism": "laplace", "norm": "l1"}, "lacks independent Gaussian noise"),
        ({"sampling": "allocation", "rate": 0.5, "batches": 2}, "allocation"),
        ({"non_private": "exact"}, "lacks independent Gaussian noise"),
    ],
)
def test_to_opacus_unsupported_release_raises(changes: dict[str, Any], reason: str):
    with pytest.raises(PrivacyError, match=reason):
        fedpriv.to_opacus([RECORD, replace(RECORD, **changes)])


def test_to_opacus_history_by_client():
    records = [replace(RECORD, noise_multiplier=(1.0, 2.0), rate=(0.1, 0.2)), replace(RECORD, round=1, clients=(1,))]
    assert fedpriv.to_opacus(records)["history"] == [(1.0, 0.1, 1)]
    assert sorted(fedpriv.to_opacus(records, client=1)["history"]) == [(1.1, 0.02, 1), (2.0, 0.2, 1)]
    with pytest.raises(ConfigError, match="client = 7"):
        fedpriv.to_opacus([replace(RECORD, clients=(1,))], client=7)


def test_total_of_costs_without_delta_raises():
    with pytest.raises(ConfigError, match="set delta"):
        fedpriv.total([fedpriv.from_opacus(HISTORY, "earlier", poisson_sampling=True)])


def test_budget_command_charges_opacus_checkpoint(tmp_path: Path):
    """Training with Opacus, its checkpoint, a budget file, and later runs that fit the budget or exceed it."""
    opacus = pytest.importorskip("opacus")
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(100, 4), torch.arange(100) % 2), batch_size=10)
    engine = opacus.PrivacyEngine()
    private = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    for x, y in private[2]:
        private[1].zero_grad()
        nn.functional.cross_entropy(private[0](x), y).backward()
        private[1].step()
    checkpoint, file = tmp_path / "march.pt", tmp_path / "clinic.jsonl"
    engine.save_checkpoint(path=checkpoint, module=private[0])
    terms = ("--epsilon", "4", "--relation", "add_remove", "--invariants", "sizes public")
    assert "Poisson draws" in error_line("budget", str(file), *terms, "--opacus", str(checkpoint))
    earlier = ("--opacus", str(checkpoint), "--poisson-sampling")
    charged = command("budget", str(file), *earlier, "--json")
    assert charged.exit_code == 0, charged.output
    balance = fedpriv.Budget(file).balance()
    assert balance.spent.epsilon == pytest.approx(engine.get_epsilon(DELTA), rel=0.02)
    assert [(entry.run, entry.state) for entry in balance.entries] == [("march", "rounds")]
    assert "has a reservation in" in error_line("budget", str(file), *earlier)

    train = ("train", DIGITS, *SMALL, "privacy.relation=add_remove", f"privacy.budget={file}")
    assert "still fits" in error_line(*train, "privacy.epsilon=3.9", "--out", str(tmp_path / "a"))
    fits = command(*train, f"privacy.epsilon={balance.left * 0.9}", "--out", str(tmp_path / "b"))
    assert fits.exit_code == 0, fits.output
    assert fedpriv.Budget(file).balance().spent.epsilon <= 4


def test_checkpoint_with_code_not_loaded(tmp_path: Path):
    file, evil = tmp_path / "b.jsonl", tmp_path / "evil.pt"
    fedpriv.Budget.create(file, epsilon=9.0, delta=DELTA, relation="add_remove", invariants="sizes public")
    torch.save({"history": Path}, evil)
    assert "cannot be read" in error_line("budget", str(file), "--opacus", str(evil), "--poisson-sampling")
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"history": [[1.0, 0.1, 2]], "mechanism": "prv"}))
    assert command("budget", str(file), "--opacus", str(state), "--poisson-sampling").exit_code == 0
