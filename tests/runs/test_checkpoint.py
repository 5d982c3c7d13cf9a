"""A checkpoint is data: whatever is in the file, reading it runs none of it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.errors import FedprivError
from fedpriv.models import SoftmaxRegression
from fedpriv.runs.checkpoint import Checkpoint

CPU = torch.device("cpu")


class RunsWhenRead:
    """A pickle of it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def training_in(folder: Path, resume: bool = False) -> fp.Training:
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    data = [TensorDataset(x[:6], y[:6]), TensorDataset(x[6:], y[6:])]
    clients = fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), data)
    privacy = fp.Privacy(noise_multiplier=5.0)
    options = {} if resume else {"secret_seed": 0}
    return fp.Training(
        clients, fp.inexact_admm(), privacy, rounds=6, folder=folder, checkpoint_every=2, resume=resume, **options
    )


@pytest.mark.parametrize("where", ["progress", "top level"])
def test_loading_checkpoint_executes_no_code(where: str, tmp_path: Path) -> None:
    folder, mark = tmp_path / "run", tmp_path / "code ran"
    for report in training_in(folder):
        if report.round == 3:
            break
    path = folder / "checkpoint.pt"
    payload = torch.load(path, weights_only=True)
    payload = {**payload, "progress" if where == "progress" else "model": RunsWhenRead(mark)}
    content = io.BytesIO()
    torch.save(payload, content)
    path.write_bytes(content.getvalue())
    for read in (lambda: Checkpoint.load(path, CPU), lambda: training_in(folder, resume=True)):
        with pytest.raises(FedprivError, match="cannot be read"):
            read()
        assert not mark.exists()
    torch.load(path, weights_only=False)  # the file does what it should not
    assert mark.exists()


def test_missing_checkpoint_error_has_path(tmp_path: Path) -> None:
    with pytest.raises(FedprivError, match=r"checkpoint\.pt does not exist; restore the file, or start another run"):
        Checkpoint.load(tmp_path / "checkpoint.pt", CPU)


def test_run_killed_before_ledger_restarts(tmp_path: Path) -> None:
    """The folder has a configuration but no release."""
    (tmp_path / "config.yaml").touch()
    assert Checkpoint.last(tmp_path, 0, CPU) is None
    with pytest.raises(FedprivError, match="does not exist"):
        Checkpoint.last(tmp_path, 1, CPU)
