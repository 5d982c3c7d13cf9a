"""Runs that are left and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

import fedpriv as fp


class RunFactory(Protocol):
    """Makes a run of at least 5 rounds in a folder, with a checkpoint after each."""

    def __call__(self, folder: Path, *, resume: bool = False) -> fp.Training: ...


def assert_resumes_exactly(training: RunFactory, folder: Path) -> None:
    """A run that is left in round 4 goes on from there to where another ends without a stop, if it has its noise."""
    whole = training(folder / "a")
    list(whole)
    stopped = training(folder / "b")
    for report in stopped:
        if report.round == 4:
            break
    assert stopped.folder is not None
    stopped.folder.close()
    again = training(folder / "b", resume=True)
    assert again.progress.round == 4
    list(again)
    assert torch.equal(again.result().node_params, whole.result().node_params)
