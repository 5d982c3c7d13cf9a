"""Check of other runs on the same data, and their total cost."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.errors import FedprivError, format_count
from fedpriv.privacy import LedgerFile, RunCost, compose
from fedpriv.privacy.accounting import round_up
from fedpriv.reports.spending import compute_run_charge
from fedpriv.runs import RunFiles, read_config

NAME = "other runs"


@dataclass(frozen=True)
class _Run:
    """The contents of another run's files.

    Attributes:
        folder: Its folder.
        data: Name of its data, see `named_data`.
        ledger: Its ledger.
    """

    folder: Path
    data: object
    ledger: LedgerFile


def check_other_runs(subject: AuditTarget, data: Data) -> CheckResult:
    """Searches for runs on the same data under the folder of runs."""
    if subject.runs is None:
        evidence = "no folder of other runs was given (--runs)"
        return CheckResult(NAME, "held", evidence, "runs in other places are not checked")
    runs: list[_Run] = []
    unreadable: list[str] = []
    for path in sorted(subject.runs.rglob("ledger.jsonl")):
        try:
            runs.append(_read(path.parent))
        except FedprivError as error:
            unreadable.append(str(error))
    audited = next((run for run in runs if subject.folder is not None and run.folder.samefile(subject.folder)), None)
    runs = _without_copies(sorted(runs, key=lambda run: run is not audited))  # of several copies, keep the audited one
    if audited is None:
        data_name = subject.data_name
    else:
        data_name = audited.data
    same = [run for run in runs if run is not audited and run.data == data_name and data_name is not None]

    broken = [*_combined_cost(subject, audited, same)]
    if unreadable and not broken:
        count = format_count(len(unreadable), "run")
        return CheckResult(NAME, "not checked", f"{count} cannot be read: {unreadable[0]}")
    count = format_count(len(runs), "run")
    evidence = f"none of {count} under {subject.runs} uses the same data"
    power = (
        "two runs use the same data if their config.yaml name the same data and files; copies of the data "
        "elsewhere are not found"
    )
    return summarize(NAME, broken, evidence, power, others=len(same))


def _without_copies(runs: Sequence[_Run]) -> list[_Run]:
    """Returns each run once: copies of a folder have the same last hash and the same checkpoint.

    Copies that both continued have equal ledgers, since a ledger contains no values, but different checkpoints.
    """
    unique: dict[str, _Run] = {}
    for run in runs:
        name = str(run.folder)
        checkpoint = run.folder / "checkpoint.pt"
        if not run.ledger.altered and checkpoint.exists():
            content = hashlib.blake2b(checkpoint.read_bytes(), digest_size=16).hexdigest()
            name = f"{run.ledger.head(len(run.ledger.texts))}/{content}"
        unique.setdefault(name, run)
    return list(unique.values())


def _read(folder: Path) -> _Run:
    """Reads a run from its folder."""
    return _Run(folder, named_data(read_config(folder)), LedgerFile.read(folder / "ledger.jsonl"))


def named_data(config: dict[str, Any] | None) -> object:
    """Returns the name of a configuration's data, and the files that it names; None if it names none.

    Other options, such as a seed of the split or transforms, do not change the people in the data.
    """
    section = (config or {}).get("data")
    if not isinstance(section, dict):
        return None
    return {name: value for name, value in cast("dict[str, Any]", section).items() if isinstance(value, str)}


def _combined_cost(subject: AuditTarget, audited: _Run | None, same: Sequence[_Run]) -> Iterator[str]:
    """Yields the total cost of the run and others on the same data, as printed by `fedpriv account`."""
    if not same:
        return
    plan = subject.plan()
    folders = ", ".join(str(run.folder) for run in same)
    if len(same) == 1:
        number = "1 other run has"
    else:
        number = f"{len(same)} other runs have"
    text = f"{number} the same data ({folders})"
    try:
        if audited is None:
            cost = RunCost("this run", plan.records, plan.n_clients)
        else:
            cost = _read_cost(audited)
        others = [_read_cost(run) for run in same]
        delta = min([plan.privacy.delta, *(_read_delta(run) for run in same)])
        alone = compose([cost], delta)
        together = compose([cost, *others], delta)
    except FedprivError as error:
        yield f"{text}, and they have no joint epsilon: {error}"
        return
    if together.epsilon > alone.epsilon or math.isinf(together.epsilon):
        yield (
            f"{text}: the joint epsilon is {round_up(together.epsilon)} at delta={delta:g}, not "
            f"{round_up(alone.epsilon)}"
        )


def _read_cost(run: _Run) -> RunCost:
    files = RunFiles.read(run.folder)
    return compute_run_charge(files, recover_plan(files))


def _read_delta(run: _Run) -> float:
    if run.ledger.header.delta is None:
        raise FedprivError(
            f"{run.ledger.path} does not contain the delta of its run, so the run's epsilon cannot be computed"
        )
    return run.ledger.header.delta
