"""The ledger forgets nothing: what is handed out was written first, and what does not fit is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from forging import plain
from ledger_runs import PRIVACY, SIZES, record_of, run_until, stopped, training_in
from privacy_worlds import Listener, clients_of, digits_of
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.plan_filter import PlanFilter
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.ledger_file import FORMAT, read_ledger
from fedpriv.strategies.fedavg import AddMeanUpdate


def test_ledger_has_header_and_line_per_release(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    header, *lines = path.read_text().splitlines()
    facts = plain(json.loads(header))
    assert len(facts.pop("config")) == 64, "the hash of its settings"
    assert len(facts.pop("run")) == 32, "its random name"
    assert facts.pop("not_covered") == ["the noise itself, to whoever knows the secret_seed of this test run"]
    assert facts == {"fedpriv_ledger": FORMAT, "n_clients": 2, "delta": 1e-5, "planned": 8}
    records = read_ledger(path)
    assert [record.round for record in records] == list(range(5))
    assert [json.loads(record.to_json()) for record in records] == [plain(json.loads(line)) for line in lines]
    assert {(r.query, r.index, r.mechanism, r.noise_multiplier, r.clients) for r in records} == {
        ("gradient", 0, "gaussian", 5.0, None)
    }


def test_epsilon_from_file_equals_run(tmp_path: Path) -> None:
    training = training_in(tmp_path)
    run_until(training, 8)
    for delta in (1e-6, 1e-5):
        assert account(read_ledger(tmp_path / "ledger.jsonl"), 2, delta) == account(training.ledger.records, 2, delta)
    assert account(read_ledger(tmp_path / "ledger.jsonl"), 2, 1e-5).epsilon == training.result().spent.epsilon


@dataclass(frozen=True)
class LedgerReadingListener(Listener):
    """A local step that looks at the file the moment it gets its answer."""

    path: Path = Path()
    seen: list[int] = field(default_factory=list)

    def __call__(self, received: Tensor, state: None, oracle) -> tuple[Tensor, None]:
        message = super().__call__(received, state, oracle)
        if self.path.exists():  # not while planning
            self.seen.append(len(read_ledger(self.path)))
        return message


def test_record_written_before_value_released(tmp_path: Path) -> None:
    path, seen = tmp_path / "ledger.jsonl", []
    strategy = fp.Strategy(LedgerReadingListener([], sign=-1, path=path, seen=seen), AddMeanUpdate())
    training = fp.Training(clients_of(digits_of(SIZES)), strategy, PRIVACY, rounds=4, folder=tmp_path)
    run_until(training, 4)
    assert seen == [1, 2, 3, 4]


def test_ledger_file_append_only(tmp_path: Path) -> None:
    path, before = tmp_path / "ledger.jsonl", b""
    for _ in training_in(tmp_path):
        now = path.read_bytes()
        assert now.startswith(before) and len(now) > len(before)
        before = now


def test_ledger_of_other_run_raises(tmp_path: Path) -> None:
    before = stopped(tmp_path).read_bytes()
    with pytest.raises(fp.LedgerError, match="another run"):
        training_in(tmp_path)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_rejected_release_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    plan = [record_of(index) for index in range(100)]
    ledger = Ledger(PlanFilter(plan, Accountant(2, 1e-5), 1.5), path)
    opened = 0
    with pytest.raises(fp.BudgetExhausted):
        for index in range(100):
            ledger.open(Release(record_of(index), torch.ones(2)))
            opened += 1
    assert 0 < opened < 100
    assert len(read_ledger(path)) == len(ledger.records) == opened
    assert (
        account(read_ledger(path), 2, 1e-5).epsilon <= 1.5 < account([*ledger.records, record_of(9)], 2, 1e-5).epsilon
    )


def test_unwritable_ledger_raises(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(Accountant(2, 1e-5), path)
    ledger.open(Release(record_of(0), torch.ones(2)))
    path.rename(tmp_path / "moved.jsonl")
    path.mkdir()  # even root cannot append to a folder
    with pytest.raises(fp.LedgerError, match=r"could not be written .* so nothing was released"):
        ledger.open(Release(record_of(1), torch.ones(2)))
    assert len(ledger.records) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_raises(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(Accountant(2, 1e-5), path)
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(fp.LedgerError, match=r"could not be written .* so nothing was released"):
        ledger.open(Release(record_of(0), torch.ones(2)))
    assert len(ledger.records) == 0
