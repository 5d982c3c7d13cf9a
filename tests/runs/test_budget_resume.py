"""Stopped, killed or abandoned runs under a lifetime budget resume and are charged once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from budgeted import stopped, training
from faulty_disk import RecordingDisk, restore
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.budget import AT_WORK, Budget
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.storage import files
from fedpriv.strategies.base import Strategy


def test_resumed_run_charged_once(budget: Budget, tmp_path: Path):
    stopped(budget, tmp_path / "r")
    before = budget.balance()
    assert [one.state for one in before.entries] == [AT_WORK]
    again = training(budget.path, tmp_path / "r", resume=True)
    list(again)
    assert [one.state for one in budget.balance().entries] == ["rounds"]
    assert budget.balance().spent == before.spent
    assert again.result().spent.epsilon == pytest.approx(before.spent.epsilon)


def test_resume_without_reservation_raises(budget: Budget, tmp_path: Path):
    old = budget.path.read_bytes()
    stopped(budget, tmp_path / "r")
    new = budget.path.read_bytes()
    for path in tmp_path.glob("b.jsonl.head"):
        path.unlink()  # so that only the run can tell
    budget.path.write_bytes(old)
    with pytest.raises(fp.LedgerError, match=r"contains no reservation of .*r, which has released results"):
        training(budget.path, tmp_path / "r", resume=True)
    budget.path.write_bytes(new)
    list(training(budget.path, tmp_path / "r", resume=True))


def test_resume_needs_same_budget_at_any_path(budget: Budget, tmp_path: Path):
    stopped(budget, tmp_path / "r")
    with pytest.raises(fp.LedgerError, match="would continue without it"):
        training(budget.path, tmp_path / "r", resume=True, privacy={"budget": None})
    other = Budget.create(tmp_path / "other.jsonl", epsilon=50.0, delta=1e-5)
    with pytest.raises(fp.LedgerError, match="began with another budget than"):
        training(other.path, tmp_path / "r", resume=True)
    moved = tmp_path / "moved.jsonl"
    budget.path.rename(moved)
    with pytest.raises(fp.LedgerError, match="This file belongs to the budget: if you moved the budget"):
        training(moved, tmp_path / "r", resume=True)
    budget.path.with_name(f"{budget.path.name}.marks").rename(f"{moved}.marks")
    list(training(moved, tmp_path / "r", resume=True))
    assert [one.state for one in Budget(moved).balance().entries] == ["rounds"]


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


def test_stop_by_strategy_charged_whole(budget: Budget, tmp_path: Path):
    """Query results may have caused the stop, so the unused part is not returned."""
    run = training(budget.path, tmp_path / "r", Strategy(fp.fedavg(0.5).local_step, Ending()))
    list(run)
    assert run.result().ended == "strategy" and run.result().rounds == 1
    entry = budget.balance().entries[0]
    assert (entry.state, entry.returned) == ("strategy", False)
    assert entry.epsilon == pytest.approx(run.plan.spent().epsilon)


def test_unused_reservation_returned_at_own_limit(budget: Budget, tmp_path: Path):
    run = training(budget.path, tmp_path / "r", privacy={"epsilon": 0.8})
    reserved = budget.balance().spent.epsilon
    list(run)
    assert run.result().ended == "budget"
    entry = budget.balance().entries[0]
    assert (entry.state, entry.returned) == ("budget", True)
    assert entry.epsilon == pytest.approx(run.result().spent.epsilon) and entry.epsilon <= 0.8 < reserved


def test_crash_at_any_operation_charged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The budget lies in the folder of the run, so that one recorder covers all operations on both."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    Budget.create(whole / "b.jsonl", epsilon=1.9, delta=1e-5)
    with monkeypatch.context() as patched:
        recorder = RecordingDisk(whole)
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
