"""Runs resumed with their ledger: recorded releases count, and are not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ledger_runs import PRIVACY, SIZES, stopped, training_in
from privacy_worlds import Listener, blank, clients_of
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.strategies.fedavg import AddMeanUpdate


def test_resume_with_fewer_records_than_checkpoint_raises(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n")
    with pytest.raises(fp.LedgerError, match=r"has 2 records, but metrics\.jsonl counts 5"):
        training_in(tmp_path, resume=True)


def test_resume_without_ledger_raises(tmp_path: Path) -> None:
    stopped(tmp_path).unlink()
    with pytest.raises(fp.LedgerError, match="no epsilon"):
        training_in(tmp_path, resume=True)


def test_resume_counts_releases_after_checkpoint(tmp_path: Path) -> None:
    """Five rounds were released; the checkpoint is of round 3. The epsilon covers all five."""
    path = stopped(tmp_path)
    resumed = training_in(tmp_path, resume=True)
    assert resumed.result().spent.epsilon >= account(read_ledger(path), 2, 1e-5).epsilon


def test_resumed_runs_never_repeat_noise(tmp_path: Path) -> None:
    """Blank images have no gradient, so each result is its noise; in lost rounds the result is zero."""
    heard: dict[str, list[Tensor]] = {}
    for name, stop, options in (("first", 5, {}), ("second", 7, {"resume": True}), ("third", 9, {"resume": True})):
        answers: list[Tensor] = []
        strategy = fp.Strategy(Listener(answers), AddMeanUpdate())
        training = fp.Training(
            clients_of(blank(SIZES)), strategy, PRIVACY, rounds=9, folder=tmp_path, checkpoint_every=3, **options
        )
        answers.clear()  # those of the plan
        for report in training:
            if report.round == stop:
                training._directory.save = lambda *_: None  # as if it was killed
                break
        if training.folder is not None:
            training.folder.close()
        heard[name] = answers
    zeros = {name: [not bool(answer.any()) for answer in answers] for name, answers in heard.items()}
    assert zeros == {
        "first": [False] * 5,
        "second": [True, True, False, False],  # rounds 4 and 5 were released, and lost
        "third": [True, False, False],  # round 7
    }
    noise = [answer.flatten() for answers in heard.values() for answer in answers if bool(answer.any())]
    assert len(torch.unique(torch.stack(noise), dim=0)) == len(noise) == 9
