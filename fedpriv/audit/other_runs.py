"""Check 8: other runs on the same data, and what they cost together; and runs that share their noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import torch

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.config.of_run import plan_of
from fedpriv.errors import FedprivError, counted
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.reports.spendings import spending_of
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.run_files import RunFiles, config_in

NAME = "other runs"


@dataclass(frozen=True)
class _Run:
    """What another run says of itself."""

    folder: Path
    data: object
    ledger: LedgerFile
    noise: str | None  # name of its streams, see `Randomness.streams_name`


def other_runs(subject: AuditTarget, data: Data) -> CheckResult:
    """Look for runs on the same data, and for the same noise, under the folder of runs."""
    if subject.runs is None:
        return CheckResult(
            NAME, "held", "no folder of runs was named: there are no others here", "of runs elsewhere nothing is seen"
        )
    runs, unread = list[_Run](), list[str]()
    for path in sorted(subject.runs.rglob("ledger.jsonl")):
        try:
            runs.append(_read(path.parent))
        except FedprivError as error:
            unread.append(str(error))
    runs = _without_copies(runs)
    own = next((run for run in runs if subject.folder is not None and run.folder.samefile(subject.folder)), None)
    if own is None:
        wanted = subject.data_name
    else:
        wanted = own.data
    same = [run for run in runs if run is not own and run.data == wanted and wanted is not None]
    broken = [*_summed(subject, own, same), *_shared_noise(runs)]
    if unread and not broken:
        return CheckResult(NAME, "not checked", f"{counted(len(unread), 'run')} cannot be read: {unread[0]}")
    count = counted(len(runs), "run")
    held = f"none of {count} under {subject.runs} is another one on the same data, and none share noise"
    power = (
        "data are the same where config.yaml names the same data and files; copies of the data elsewhere are not seen"
    )
    return summarize(NAME, broken, held, power, others=len(same))


def _without_copies(runs: Sequence[_Run]) -> list[_Run]:
    """Each run once: copies of a folder have the same last hash."""
    known = dict[str, _Run]()
    for run in runs:
        if not run.ledger.altered:
            head = run.ledger.head(len(run.ledger.texts))
        else:
            head = None
        known.setdefault(head or str(run.folder), run)
    return list(known.values())


def _read(folder: Path) -> _Run:
    checkpoint, config = folder / "checkpoint.pt", config_in(folder)
    if checkpoint.exists():
        saved = Checkpoint.load(checkpoint, torch.device("meta"))
    else:
        saved = None
    if saved is None:
        noise = None
    else:
        noise = saved.randomness().streams_name()
    return _Run(folder, named_data(config), LedgerFile.read(folder / "ledger.jsonl"), noise)


def named_data(config: dict[str, Any] | None) -> object:
    """The name of a configuration's data, and the files that it names; None if it names none.

    Other options, such as a seed of the split or transforms, leave the people the same.
    """
    found = (config or {}).get("data")
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in cast("dict[str, Any]", found).items() if isinstance(value, str)}


def _summed(subject: AuditTarget, own: _Run | None, same: Sequence[_Run]) -> Iterator[str]:
    """Says what the run and others on the same data cost together, as `fedpriv account` of their folders does."""
    if not same:
        return
    plan = subject.plan()
    folders = ", ".join(str(run.folder) for run in same)
    if len(same) == 1:
        number = "1 other run has"
    else:
        number = f"{len(same)} other runs have"
    this = f"{number} the same data ({folders})"
    try:
        if own is None:
            cost = RunCost("this run", plan.records, plan.n_clients)
        else:
            cost = _cost_of(own)
        others = [_cost_of(run) for run in same]
        delta = min([plan.privacy.delta, *(_delta_of(run) for run in same)])
        alone, together = compose([cost], delta), compose([cost, *others], delta)
    except FedprivError as error:
        yield f"{this}, and no epsilon of all together is known: {error}"
        return
    if together.epsilon > alone.epsilon or math.isinf(together.epsilon):
        yield f"{this}: together epsilon={round_up(together.epsilon)} at delta={delta:g}, not {round_up(alone.epsilon)}"


def _cost_of(run: _Run) -> RunCost:
    files = RunFiles.read(run.folder)
    return spending_of(files, plan_of(files))


def _delta_of(run: _Run) -> float:
    if run.ledger.header.delta is None:
        raise FedprivError(f"{run.ledger.path} does not say which delta it is for")
    return run.ledger.header.delta


def _shared_noise(runs: Sequence[_Run]) -> Iterator[str]:
    """Runs of one seed and one setting."""
    for one, other in combinations(runs, 2):
        if one.noise is not None and one.noise == other.noise:
            same = f"{one.folder} and {other.folder} have the same secret seed and settings, and so the same noise"
            yield f"{same}: the difference of their answers has none"
