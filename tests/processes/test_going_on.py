"""A run of several processes stops and goes on, with as many processes or others, as if it had not stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from split_runs import Case, Outcome, finished, training
from test_same_run import assert_same, in_one
from workers import Failed, Workers

import fedpriv as fp

CASE = Case("name: scaffold, learning_rate: .5, local_steps: 2", network="fixed", rounds=6)
EVERY = {"checkpoint_every": 2}


def stopped(case: Case, engine: str, folder: Path, at: int, save: bool) -> None:
    """Train some rounds, and leave: after a checkpoint, or with rounds past the last one."""
    run = training(case, engine, folder=folder, **EVERY)
    for report in run:
        if report.round == at:
            break
    if save:
        run.save()
    if run.folder is not None:
        run.folder.close()


def gone_on(case: Case, engine: str, folder: Path, more: dict[str, Any] | None = None) -> Outcome:
    run = training(case, engine, folder=folder, resume=True, **EVERY, **(more or {}))
    found = finished(run)
    if run.folder is not None:
        run.folder.close()
    return found


def without_digests(found: Outcome) -> Outcome:
    from dataclasses import replace

    records = [replace(record, digest=None) for record in found.records or ()]
    return replace(found, records=records, reports=())


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 1), (1, 3)], ids=str)
def test_it_goes_on_from_a_checkpoint_with_any_number_of_processes(
    workers: Workers, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    before, after = sizes
    if before == 1:
        stopped(CASE, "local", tmp_path / "run", 3, True)
    else:
        workers.of(before, stopped, CASE, "processes", tmp_path / "run", 3, True)
    if after == 1:
        found = gone_on(CASE, "local", tmp_path / "run")
    else:
        found = workers.of(after, gone_on, CASE, "processes", tmp_path / "run")[0]
    assert_same(without_digests(found), without_digests(in_one(CASE)), 1e-9)


def test_rounds_past_the_checkpoint_are_repeated_by_as_many_processes_only(workers: Workers, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    workers.of(2, stopped, CASE, "processes", folder, 5, False)
    with pytest.raises(Failed, match=r"processes = 3: .*give --processes 2, or --fresh-noise"):
        workers.of(3, gone_on, CASE, "processes", folder)
    with pytest.raises(fp.ConfigError, match=r"processes = 1: .*give --processes 2, or --fresh-noise"):
        gone_on(CASE, "local", folder)
    found = workers.of(2, gone_on, CASE, "processes", folder)[0]
    assert_same(without_digests(found), without_digests(in_one(CASE)), 1e-9)


def test_fresh_noise_is_charged_with_any_number_of_processes(workers: Workers, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    workers.of(2, stopped, CASE, "processes", folder, 5, False)
    found = workers.of(3, gone_on, CASE, "processes", folder, {"fresh_noise": True})[0]
    assert found.records is not None
    assert len(found.records) > len(in_one(CASE).records or ())
    assert found.epsilon > in_one(CASE).epsilon
