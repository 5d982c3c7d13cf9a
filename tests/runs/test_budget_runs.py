"""Runs that draw on a lifetime budget: they reserve first, pay once, and are refused before their data are read."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from commands import fedpriv, refused, trained
from faulty_disk import Recorder, restore
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fedpriv as fp
from fedpriv.privacy.budget import AT_WORK, Budget
from fedpriv.privacy.ledger_file import LedgerFile, read_ledger
from fedpriv.storage import files
from fedpriv.strategies.base import Strategy

LOSS = nn.CrossEntropyLoss()


class Counted(Dataset[Any]):
    """Examples that count how often they are read."""

    reads: ClassVar[int] = 0

    def __init__(self, client: int) -> None:
        made = torch.Generator().manual_seed(client)
        self._x, self._y = torch.rand(8, 4, generator=made), torch.randint(2, (8,), generator=made)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        Counted.reads += 1
        return self._x[index], self._y[index]


def clients() -> list[fp.Client]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return [fp.Client(model, LOSS, DataLoader(Counted(i))) for i in range(2)]


def training(path: Path, folder: Path | None = None, strategy: Strategy | None = None, **more: Any) -> fp.Training:
    given = {"noise_multiplier": 8.0, "budget": str(path), **more.pop("privacy", {})}
    settings = {"rounds": 4, "seed": 0, "checkpoint_every": 2, "folder": folder, **more}
    return fp.Training(clients(), strategy or fp.fedavg(0.5), fp.Privacy(**given), **settings)


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    return Budget.create(tmp_path / "b.jsonl", epsilon=1.9, delta=1e-5)


def stopped(budget: Budget, folder: Path, after: int = 3, **more: Any) -> None:
    """A run that is left after so many rounds."""
    run = training(budget.path, folder, **more)
    for report in run:
        if report.round == after:
            break
    assert run.folder is not None
    run.folder.close()


def test_the_command_line_counts_runs_together_and_refuses_the_third(tmp_path: Path):
    file = tmp_path / "lifetime.jsonl"
    made = fedpriv("budget", str(file), "--epsilon", "1.5", "--data", "digits")
    assert made.exit_code == 0 and "nothing" in made.stdout and "epsilon=1.5 of the data 'digits'" in made.stdout
    folders = [
        trained(tmp_path / f"r{i}", "privacy.epsilon=1", f"privacy.budget={file}", f"secret_seed={i}") for i in (1, 2)
    ]
    told = json.loads(fedpriv("budget", str(file), "--json").stdout)
    assert told["epsilon"] == pytest.approx(1.465, abs=1e-3)
    assert [run["run"] for run in told["runs"]] == [str(folder) for folder in folders]
    assert {run["state"] for run in told["runs"]} == {"rounds"}
    accounted = json.loads(fedpriv("account", *map(str, folders), "--json").stdout)
    assert told["epsilon"] == pytest.approx(accounted["epsilon"], rel=1e-9)

    words = ["train", str(Path(__file__).parents[1] / "run.yaml"), "--out", str(tmp_path / "r3")]
    said = refused(*words, "privacy.epsilon=1", f"privacy.budget={file}", "rounds=4")
    for text in (str(file), "allows epsilon=1.5", "is spent by 2 runs", "costs 1", "cost 1.835", "up to epsilon=0."):
        assert text in said
    assert not (tmp_path / "r3").exists()
    shown = fedpriv("budget", str(file)).stdout
    assert "(delta=1e-5, unit=sample" in shown and "finished" in shown
    assert "does not exist" in refused(*words, f"privacy.budget={tmp_path / 'none'}")


def test_a_run_that_would_overspend_reads_no_example(budget: Budget, tmp_path: Path):
    before = Counted.reads
    with pytest.raises(fp.BudgetExhausted, match="Nothing was released"):
        training(budget.path, tmp_path / "r", privacy={"noise_multiplier": 1.0})
    assert Counted.reads == before
    assert not (tmp_path / "r" / "ledger.jsonl").exists()
    assert not budget.balance().entries


def test_the_whole_plan_is_reserved_before_the_first_release(budget: Budget, tmp_path: Path):
    run = training(budget.path, tmp_path / "r")
    entry = budget.balance().entries[0]
    assert entry.epsilon == pytest.approx(run.plan.spent().epsilon) and entry.state == AT_WORK
    assert read_ledger(tmp_path / "r" / "ledger.jsonl") == []
    assert LedgerFile.read(tmp_path / "r" / "ledger.jsonl").header.budget == budget.terms.id


def test_a_run_that_goes_on_does_not_pay_twice(budget: Budget, tmp_path: Path):
    stopped(budget, tmp_path / "r")
    before = budget.balance()
    assert [one.state for one in before.entries] == [AT_WORK]
    again = training(budget.path, tmp_path / "r", resume=True)
    list(again)
    assert [one.state for one in budget.balance().entries] == ["rounds"]
    assert budget.balance().spent == before.spent
    assert again.result().spent.epsilon == pytest.approx(before.spent.epsilon)


def test_fresh_noise_is_paid_for_what_it_may_answer_again(budget: Budget, tmp_path: Path):
    stopped(budget, tmp_path / "r")
    again = training(budget.path, tmp_path / "r", resume=True, fresh_noise=True)
    list(again)
    whole, more = budget.balance().entries
    assert whole.epsilon > more.epsilon > 0  # rounds 3 and 4 of 4
    truth = again.result().spent.epsilon
    assert whole.epsilon < truth <= budget.balance().spent.epsilon


def test_a_run_whose_reservation_is_gone_does_not_go_on(budget: Budget, tmp_path: Path):
    old = budget.path.read_bytes()
    stopped(budget, tmp_path / "r")
    new = budget.path.read_bytes()
    for path in tmp_path.glob("b.jsonl.head"):
        path.unlink()  # so that only the run can tell
    budget.path.write_bytes(old)
    with pytest.raises(fp.LedgerError, match=r"holds no reservation of .*r, which has released answers"):
        training(budget.path, tmp_path / "r", resume=True)
    budget.path.write_bytes(new)
    list(training(budget.path, tmp_path / "r", resume=True))


def test_a_run_does_not_go_on_without_its_budget_but_may_from_another_place(budget: Budget, tmp_path: Path):
    stopped(budget, tmp_path / "r")
    with pytest.raises(fp.LedgerError, match="would go on without it"):
        training(budget.path, tmp_path / "r", resume=True, privacy={"budget": None})
    other = Budget.create(tmp_path / "other.jsonl", epsilon=50.0, delta=1e-5)
    with pytest.raises(fp.LedgerError, match="began with another budget"):
        training(other.path, tmp_path / "r", resume=True)
    moved = tmp_path / "moved.jsonl"
    budget.path.rename(moved)
    list(training(moved, tmp_path / "r", resume=True))
    assert [one.state for one in Budget(moved).balance().entries] == ["rounds"]


def test_a_budget_changes_neither_noise_nor_answers(budget: Budget, tmp_path: Path):
    privacy = [{"budget": None}, {}]
    with_and_without = [
        training(budget.path, tmp_path / str(i), privacy=p, secret_seed=7) for i, p in enumerate(privacy)
    ]
    for run in with_and_without:
        list(run)
    one, other = (read_ledger(tmp_path / name / "ledger.jsonl") for name in "01")
    assert one == other and one[0].digest


def test_a_second_run_with_the_same_noise_is_refused(budget: Budget, tmp_path: Path):
    list(training(budget.path, tmp_path / "a", secret_seed=7))
    with pytest.raises(fp.PrivacyError, match="would draw the noise of"):
        training(budget.path, tmp_path / "b", secret_seed=7)


@dataclass(frozen=True)
class Ended:
    done: bool = False


@dataclass(frozen=True)
class Ending:
    """Adds mean updates, and ends after the first round."""

    receives: ClassVar = ("update",)
    sends: ClassVar = ("model",)
    is_sum: ClassVar = True

    def init(self, params: Tensor) -> tuple[Tensor, Ended]:
        return params, Ended()

    def __call__(self, message: Tensor, network: Any, state: Ended) -> tuple[Tensor, Ended]:
        return network.mean(message), Ended(bool((message != 0).any()))


def test_a_stop_that_answers_may_have_caused_stays_charged_whole(budget: Budget, tmp_path: Path):
    run = training(budget.path, tmp_path / "r", Strategy(fp.fedavg(0.5).local_step, Ending()))
    list(run)
    assert run.result().ended == "strategy" and run.result().rounds == 1
    entry = budget.balance().entries[0]
    assert (entry.state, entry.returned) == ("strategy", False)
    assert entry.epsilon == pytest.approx(run.plan.spent().epsilon)


def test_what_the_runs_own_limit_left_over_is_given_back(budget: Budget, tmp_path: Path):
    run = training(budget.path, tmp_path / "r", privacy={"epsilon": 0.8})
    reserved = budget.balance().spent.epsilon
    list(run)
    assert run.result().ended == "budget"
    entry = budget.balance().entries[0]
    assert (entry.state, entry.returned) == ("budget", True)
    assert entry.epsilon == pytest.approx(run.result().spent.epsilon) and entry.epsilon <= 0.8 < reserved


@dataclass(frozen=True)
class Greedy:
    """Asks once more where an answer is not zero: a plan, whose answers are zero, cannot foresee it."""

    receives: ClassVar = ("model",)
    sends: ClassVar = ("update",)
    memory: ClassVar = "none"
    linear: ClassVar = False

    def init(self, params: Tensor) -> None:
        """Nothing is kept."""

    def __call__(self, received: Tensor, state: None, oracle: Any) -> tuple[Tensor, None]:
        gradient = oracle.gradient(received)
        return -(oracle.gradient(received) if (gradient != 0).any() else gradient), state


def test_what_was_not_reserved_is_not_released(budget: Budget, tmp_path: Path):
    run = training(budget.path, tmp_path / "r", Strategy(Greedy(), fp.fedavg(0.5).aggregator))
    with pytest.raises(fp.PrivacyError, match="the plan has no such answer at this price"):
        list(run)
    assert len(read_ledger(tmp_path / "r" / "ledger.jsonl")) == 1
    assert budget.balance().entries[0].state == AT_WORK


def test_runs_that_no_epsilon_covers_are_refused(budget: Budget, tmp_path: Path):
    exact = {"at": "none", "noise_multiplier": None}
    with pytest.raises(fp.PrivacyError, match="epsilon=inf"):
        training(budget.path, privacy=exact)
    with pytest.raises(fp.PrivacyError, match="no epsilon covers"):
        training(budget.path, optimum=0.1)


def test_a_run_in_memory_is_charged_too(budget: Budget):
    result = fp.train(clients(), fp.fedavg(0.5), fp.Privacy(noise_multiplier=8.0, budget=budget.path), rounds=2)
    (entry,) = budget.balance().entries
    assert (entry.run, entry.state) == ("a run in memory", "rounds")
    assert entry.epsilon == pytest.approx(result.spent.epsilon)


def test_a_run_that_cannot_be_set_up_is_not_charged(budget: Budget):
    broken = [fp.Client(nn.Linear(4, 2), LOSS, DataLoader(TensorDataset(torch.rand(8, 3), torch.zeros(8).long())))]
    with pytest.raises((fp.FedprivError, RuntimeError)):
        fp.train(broken, fp.fedavg(0.5), fp.Privacy(noise_multiplier=8.0, budget=budget.path), rounds=2)
    assert not budget.balance().entries


def test_whatever_a_crash_leaves_is_charged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The budget lies in the run's folder here, so that one recorder sees every operation on both."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    Budget.create(whole / "b.jsonl", epsilon=1.9, delta=1e-5)
    with monkeypatch.context() as patched:
        recorder = Recorder(whole)
        patched.setattr(files, "disk", recorder)
        list(training(whole / "b.jsonl", whole, rounds=1, checkpoint_every=1))
        recorder.end()
    seen, states = set[int](), set[str]()
    for moment in recorder.moments:
        for found in (moment.killed, *moment.power_cuts):
            kept = {name: content for name, content in found.items() if not name.endswith(".new")}
            if (key := hash(tuple(sorted(kept.items())))) in seen:
                continue
            seen.add(key)
            restore(broken, kept)
            held = Budget(broken / "b.jsonl").balance().entries
            released = (broken / "ledger.jsonl").exists() and read_ledger(broken / "ledger.jsonl")
            assert held or not released, moment.at
            run = training(
                broken / "b.jsonl", broken, rounds=1, checkpoint_every=1, resume=(broken / "ledger.jsonl").exists()
            )
            list(run)
            assert run.folder is not None
            run.folder.close()
            entries = Budget(broken / "b.jsonl").balance().entries
            assert len(entries) == 1, moment.at
            states.add(entries[0].state)
            shutil.rmtree(broken)
    assert states == {"rounds"} and len(seen) > 12


@pytest.mark.distributed
def test_several_processes_pay_as_one(tmp_path: Path):
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


def test_a_budget_is_for_privacy_of_the_settings_it_names(budget: Budget, tmp_path: Path):
    whole = replace(fp.Privacy(noise_multiplier=8.0, unit="client"), budget=str(budget.path))
    fp.train(clients(), fp.fedavg(0.5), whole, rounds=2)  # who protects clients protects their examples
    strict = Budget.create(tmp_path / "clients.jsonl", epsilon=1.9, delta=1e-5, unit="client")
    with pytest.raises(fp.PrivacyError, match="protects one sample, and the budget one client"):
        training(strict.path)
