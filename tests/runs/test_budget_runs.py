"""Runs under a lifetime budget: they reserve first, are charged once, and raise before they read data."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from budgeted import LOSS, Counted, clients, training
from commands import error_line, fedpriv, trained
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedpriv as fp
from fedpriv.errors import BudgetExhausted
from fedpriv.privacy.budget import AT_WORK, Budget
from fedpriv.privacy.ledger_file import LedgerFile, read_ledger
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.fedavg import AddMeanUpdate


def test_cli_budget_composes_runs_and_refuses_third(tmp_path: Path):
    file = tmp_path / "lifetime.jsonl"
    made = fedpriv("budget", str(file), "--epsilon", "1.5", "--data", "digits")
    assert made.exit_code == 0 and "nothing" in made.stdout and "epsilon=1.5 of the data 'digits'" in made.stdout
    folders = [
        trained(tmp_path / f"r{i}", "privacy.epsilon=1", f"privacy.budget={file}", "secret_seed=null") for i in (1, 2)
    ]
    shown_budget = json.loads(fedpriv("budget", str(file), "--json").stdout)
    assert shown_budget["epsilon"] == pytest.approx(1.465, abs=1e-3)
    assert [run["run"] for run in shown_budget["runs"]] == [str(folder) for folder in folders]
    assert {run["state"] for run in shown_budget["runs"]} == {"rounds"}
    accounted = json.loads(fedpriv("account", *map(str, folders), "--json").stdout)
    assert shown_budget["epsilon"] == pytest.approx(accounted["epsilon"], rel=1e-9)

    words = ["train", str(Path(__file__).parents[1] / "run.yaml"), "--out", str(tmp_path / "r3")]
    error = error_line(*words, "privacy.epsilon=1", f"privacy.budget={file}", "rounds=4")
    costs = "allows epsilon=1.5", "is spent by 2 runs", "costs epsilon 1", "cost epsilon 1.835", "up to epsilon=0."
    for text in (str(file), *costs):
        assert text in error
    assert not (tmp_path / "r3").exists()
    shown = fedpriv("budget", str(file)).stdout
    assert "(delta=1e-5, unit=sample" in shown and "finished" in shown
    assert "does not exist" in error_line(*words, f"privacy.budget={tmp_path / 'none'}")


def test_overspending_run_reads_no_example(budget: Budget, tmp_path: Path):
    before = Counted.reads
    with pytest.raises(fp.BudgetExhausted, match="Nothing was released"):
        training(budget.path, tmp_path / "r", privacy={"noise_multiplier": 1.0})
    assert Counted.reads == before
    assert not (tmp_path / "r" / "ledger.jsonl").exists()
    assert not budget.balance().entries


def test_plan_reserved_before_first_release(budget: Budget, tmp_path: Path):
    run = training(budget.path, tmp_path / "r")
    entry = budget.balance().entries[0]
    assert entry.epsilon == pytest.approx(run.plan.spent().epsilon) and entry.state == AT_WORK
    assert read_ledger(tmp_path / "r" / "ledger.jsonl") == []
    assert LedgerFile.read(tmp_path / "r" / "ledger.jsonl").header.budget == budget.terms.id


def test_budget_leaves_releases_unchanged(budget: Budget, tmp_path: Path):
    privacy = [{"budget": None}, {}]
    with_and_without = [training(budget.path, tmp_path / str(i), privacy=p) for i, p in enumerate(privacy)]
    for run in with_and_without:
        list(run)
    one, other = (read_ledger(tmp_path / name / "ledger.jsonl") for name in "01")
    assert one == other


@dataclass(frozen=True)
class Greedy:
    """Queries again if a query result is not zero; the plan, with results of zero, does not contain this query."""

    receives: ClassVar = ("model",)
    sends: ClassVar = ("update",)
    memory: ClassVar = "none"
    linear: ClassVar = False

    def init(self, params: Tensor) -> None:
        """Nothing is kept."""

    def __call__(self, received: Tensor, state: None, oracle: Any) -> tuple[Tensor, None]:
        gradient = oracle.gradient(received)
        return -(oracle.gradient(received) if (gradient != 0).any() else gradient), state


def test_query_outside_plan_raises(budget: Budget, tmp_path: Path):
    run = training(budget.path, tmp_path / "r", Strategy(Greedy(), fp.fedavg(0.5).aggregator))
    with pytest.raises(fp.PrivacyError, match="the plan has no such query with this privacy cost"):
        list(run)
    assert len(read_ledger(tmp_path / "r" / "ledger.jsonl")) == 1
    assert budget.balance().entries[0].state == AT_WORK


def test_run_without_finite_epsilon_raises(budget: Budget, tmp_path: Path):
    exact = {"noise_on": "none", "noise_multiplier": None}
    with pytest.raises(fp.PrivacyError, match="epsilon=inf"):
        training(budget.path, privacy=exact)
    with pytest.raises(fp.PrivacyError, match="which epsilon does not cover"):
        training(budget.path, optimum=0.1)


def test_run_in_memory_charged(budget: Budget):
    result = fp.train(clients(), fp.fedavg(0.5), fp.Privacy(noise_multiplier=8.0, budget=budget.path), rounds=2)
    (entry,) = budget.balance().entries
    assert (entry.run, entry.state) == ("a run in memory", "rounds")
    assert entry.epsilon == pytest.approx(result.spent.epsilon)


@dataclass(frozen=True)
class RaisesExhausted:
    """A user's local step that ends the run because of an answer, as if the budget had."""

    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("update",)
    memory: ClassVar[str] = "none"
    linear: ClassVar[bool] = False

    def init(self, params: Tensor) -> None:
        return None

    def __call__(self, received: Tensor, state: None, oracle: Any) -> tuple[Tensor, None]:
        answer = oracle.gradient(received)
        if float(answer.norm()) > 0:  # the plan is made on answers of zero
            raise BudgetExhausted("because of an answer")
        return -answer, state


def test_strategy_raising_budget_exhausted_charged_whole(budget: Budget):
    run = training(budget.path, strategy=fp.Strategy(RaisesExhausted(), AddMeanUpdate()))
    assert list(run) == []
    planned = run.plan.spent().epsilon
    assert run.result().ended == "left"
    assert run.result().spent.epsilon >= planned
    assert budget.balance().spent.epsilon == pytest.approx(planned)
    (entry,) = budget.balance().entries
    assert (entry.state, entry.returned) == (AT_WORK, False)


def test_failed_setup_not_charged(budget: Budget):
    broken = [fp.Client(nn.Linear(4, 2), LOSS, DataLoader(TensorDataset(torch.rand(8, 3), torch.zeros(8).long())))]
    with pytest.raises((fp.FedprivError, RuntimeError)):
        fp.train(broken, fp.fedavg(0.5), fp.Privacy(noise_multiplier=8.0, budget=budget.path), rounds=2)
    assert not budget.balance().entries


@pytest.mark.distributed
def test_several_processes_charged_once(tmp_path: Path):
    import subprocess

    file, config = tmp_path / "b.jsonl", str(Path(__file__).parents[1] / "run.yaml")
    Budget.create(file, epsilon=1.3, delta=1e-5)
    settings = [
        "strategy={name: fedavg, learning_rate: 0.5}",
        "privacy.epsilon=1",
        f"privacy.budget={file}",
        "rounds=3",
    ]

    def train(name: str) -> subprocess.CompletedProcess[str]:
        words = ["train", config, *settings, "log.tensorboard=false", "--out", str(tmp_path / name), "--processes", "2"]
        command = [sys.executable, "-m", "fedpriv", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert train("a").returncode == 0
    assert [one.state for one in Budget(file).balance().entries] == ["rounds"]
    second = train("b")
    assert second.returncode == 2 and second.stderr.count("error:") == 1
    assert "allows epsilon=1.3" in second.stderr
    assert len(Budget(file).balance().entries) == 1


def test_budget_unit_must_match(budget: Budget, tmp_path: Path):
    whole = replace(fp.Privacy(noise_multiplier=8.0, unit="client"), budget=str(budget.path))
    fp.train(clients(), fp.fedavg(0.5), whole, rounds=2)  # who protects clients protects their examples
    strict = Budget.create(tmp_path / "clients.jsonl", epsilon=1.9, delta=1e-5, unit="client")
    with pytest.raises(
        fp.PrivacyError, match="protects the privacy unit sample, but the budget requires the unit client"
    ):
        training(strict.path)
