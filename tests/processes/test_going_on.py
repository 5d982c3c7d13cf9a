"""A run of several processes stops and resumes, with any number of processes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from split_runs import Case, Outcome, finished, training
from test_same_run import assert_same, in_one
from workers import Workers

CASE = Case("name: scaffold, learning_rate: .5, local_steps: 2", network="fixed", rounds=6)
EVERY = {"checkpoint_every": 2}


def stopped(case: Case, parallelism: str, folder: Path, at: int, save: bool) -> None:
    """Train some rounds, and leave: after a checkpoint, or with rounds past the last one."""
    run = training(case, parallelism, folder=folder, **EVERY)
    for report in run:
        if report.round == at:
            break
    if save:
        run.save()
    if run.folder is not None:
        run.folder.close()


def resumed(case: Case, parallelism: str, folder: Path) -> Outcome:
    run = training(case, parallelism, folder=folder, resume=True, **EVERY)
    found = finished(run)
    if run.folder is not None:
        run.folder.close()
    return found


def without_reports(found: Outcome) -> Outcome:
    """Drops the reports, which begin at the checkpoint in a resumed run."""
    return replace(found, reports=())


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 1), (1, 3)], ids=str)
def test_checkpoint_resumes_with_any_process_count(workers: Workers, tmp_path: Path, sizes: tuple[int, int]) -> None:
    before, after = sizes
    if before == 1:
        stopped(CASE, "none", tmp_path / "run", 3, True)
    else:
        workers.of(before, stopped, CASE, "clients", tmp_path / "run", 3, True)
    if after == 1:
        found = resumed(CASE, "none", tmp_path / "run")
    else:
        found = workers.of(after, resumed, CASE, "clients", tmp_path / "run")[0]
    assert_same(without_reports(found), without_reports(in_one(CASE)), 1e-9)


def test_lost_rounds_same_with_any_process_count(workers: Workers, tmp_path: Path) -> None:
    """Round 5 is recorded, but its query result is lost: no process queries it again."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    workers.of(2, stopped, CASE, "clients", folder, 5, False)
    shutil.copytree(folder, copy)
    in_three = workers.of(3, resumed, CASE, "clients", folder)[0]
    assert_same(without_reports(resumed(CASE, "none", copy)), without_reports(in_three), 1e-9)
    whole = in_one(CASE)
    assert in_three.records == whole.records
    assert in_three.epsilon == whole.epsilon
    assert not torch.equal(in_three.state["params"], whole.state["params"])
