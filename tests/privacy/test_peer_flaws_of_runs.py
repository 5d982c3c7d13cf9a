"""Flaws in how another simulator went on and wrote checkpoints: fedpriv refuses or survives each of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from peer_runs import SIZES, training_of
from privacy_worlds import digits_of
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.runs.checkpoint import Checkpoint


def test_iterating_finished_run_raises() -> None:
    """There: a second run() trained 0 rounds, silently."""
    training = training_of(fp.Privacy(epsilon=3), rounds=3)
    assert len(list(training)) == 3
    with pytest.raises(fp.FedprivError):
        list(training)


def test_iteration_continues_after_break() -> None:
    training, whole = (training_of(fp.Privacy(epsilon=3), rounds=5) for _ in range(2))
    for report in training:
        if report.round == 2:
            break
    assert [report.round for report in training] == [3, 4, 5]
    list(whole)
    assert torch.equal(training.result().params, whole.result().params)
    assert len(training.ledger.records) == 5


def test_failed_checkpoint_write_keeps_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = fp.Training(
        fp.make_clients(
            SoftmaxRegression(64, 10), nn.CrossEntropyLoss(), [TensorDataset(*d) for d in digits_of(SIZES)]
        ),
        fp.inexact_admm(),
        fp.Privacy(epsilon=3),
        rounds=5,
        folder=tmp_path,
        checkpoint_every=100,
    )
    steps = iter(training)
    next(steps)
    training.save()
    before = (tmp_path / "checkpoint.pt").read_bytes()
    next(steps)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((OSError, fp.FedprivError)):
        training.save()
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert Checkpoint.load(tmp_path / "checkpoint.pt", torch.device("cpu")).round == 1


@pytest.mark.parametrize(
    "keep",
    [0, 1, 100, 1000],
)
def test_torn_checkpoint_raises(tmp_path: Path, keep: int) -> None:
    training = training_of(fp.Privacy(epsilon=3), folder=tmp_path)
    training.save()
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(fp.FedprivError, match=r"checkpoint\.pt cannot be read"):
        Checkpoint.load(path, torch.device("cpu"))
