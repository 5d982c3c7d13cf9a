"""Runs that go on with their ledger: they repeat to the bit, or pay for fresh noise, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ledger_runs import PRIVACY, SIZES, run_until, stopped, training_in
from privacy_worlds import Listener, blank, clients_of, digits_of, with_record
from torch import Tensor

import fedpriv as fp
from fedpriv.clients.data_fingerprints import DataFingerprints
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.strategies.fedavg import AddMeanUpdate


def test_fewer_records_than_the_checkpoint_has_seen_are_refused(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n")
    with pytest.raises(fp.LedgerError, match="holds 2 records but"):
        training_in(tmp_path, resume=True)


def test_a_missing_ledger_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path).unlink()
    with pytest.raises(fp.LedgerError, match="no epsilon"):
        training_in(tmp_path, resume=True)


def test_resume_repeats_to_the_bit_and_charges_once(tmp_path: Path) -> None:
    unbroken = training_in(tmp_path / "unbroken")
    run_until(unbroken, 8)
    stopped(tmp_path / "resumed")
    resumed = training_in(tmp_path / "resumed", resume=True)
    run_until(resumed, 8)
    assert torch.equal(unbroken.result().params, resumed.result().params)
    assert unbroken.result().spent == resumed.result().spent
    first, second = ((tmp_path / name / "ledger.jsonl").read_bytes() for name in ("unbroken", "resumed"))
    assert first == second


def test_what_was_released_after_the_checkpoint_counts_at_once(tmp_path: Path) -> None:
    """Five rounds were released, whatever the checkpoint of round 3 knows: the epsilon of the run covers them."""
    path = stopped(tmp_path)
    resumed = training_in(tmp_path, resume=True)
    assert resumed.result().spent.epsilon >= account(read_ledger(path), 2, 1e-5).epsilon


def test_a_replay_on_other_data_is_refused(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    before = path.read_bytes()
    other = with_record(digits_of(SIZES), 1, 0, torch.ones(64, dtype=torch.float64), 7)
    with pytest.raises(fp.DataError, match="client 1: its examples are not those that this run began with"):
        run_until(training_in(tmp_path, other, resume=True), 8)
    assert path.read_bytes() == before


def test_a_replay_of_another_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of defence: the data are the same, and what is computed of them is not."""
    path = stopped(tmp_path)
    before = path.read_bytes()
    other = with_record(digits_of(SIZES), 1, 0, torch.ones(64, dtype=torch.float64), 7)
    monkeypatch.setattr(DataFingerprints, "check", lambda *_: None)
    with pytest.raises(fp.LedgerError, match="differs from the one on record"):
        run_until(training_in(tmp_path, other, resume=True), 8)
    assert path.read_bytes() == before


def test_fresh_noise_charges_the_repeated_rounds_again(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    resumed = training_in(tmp_path, resume=True, fresh_noise=True)
    run_until(resumed, 8)
    records = read_ledger(path)
    assert [record.round for record in records] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    assert resumed.result().spent == account(records, 2, 1e-5)
    digests = {(record.round, record.digest) for record in records}
    assert len(digests) == len(records)  # rounds 3 and 4 were answered with other noise


def test_no_noise_comes_twice_however_a_run_is_resumed(tmp_path: Path) -> None:
    """Stop, go on with fresh noise, stop, go on plainly: round 6 of the first attempt must not lend its noise again.

    Blank images have no gradient, so here an answer is its noise. With the same noise on other data, the difference of
    two releases would be the exact difference of two gradients.
    """
    heard: dict[str, list[Tensor]] = {}
    for name, stop, options in (
        ("first", 8, {}),
        ("fresh", 6, {"resume": True, "fresh_noise": True}),
        ("plain", 8, {"resume": True}),
    ):
        answers: list[Tensor] = []
        strategy = fp.Strategy(Listener(answers), AddMeanUpdate())
        training = fp.Training(
            clients_of(blank(SIZES)), strategy, PRIVACY, rounds=9, folder=tmp_path, checkpoint_every=100, **options
        )
        answers.clear()  # those of the plan
        for report in training:
            if (name, report.round) in (("first", 3), ("fresh", 6)):
                training.save()
            if report.round == stop:
                break
        heard[name] = answers
    assert [len(answers) for answers in heard.values()] == [8, 3, 2]
    every = torch.stack([answer.flatten() for answers in heard.values() for answer in answers])
    assert len(torch.unique(every, dim=0)) == len(every)
