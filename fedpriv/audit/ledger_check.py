"""Ledger check: the ledger has a record of every planned release, and all files of a run agree."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.probing import trace_run
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.planning import Plan
from fedpriv.privacy import LedgerFile
from fedpriv.privacy.accounting import account
from fedpriv.runs import RunFiles, compare_with_plan, find_problems

NAME = "ledger"
_ROUNDS = 2
_ROWS = 5  # of the metrics file, for which epsilon is computed again
_SLACK = 1e-6  # relative; epsilon is printed rounded
_PLAIN: dict[str, Any] = {"metrics": None, "stop": None, "client_tests": None, "optimum": None}  # no other queries


def check_ledger(subject: AuditTarget, data: Data) -> CheckResult:
    """Compares the files of a run, or of a short run, with its plan and its releases."""
    broken = list(_unrecorded_releases(subject, data))
    if subject.folder is not None:
        files = RunFiles.read(subject.folder)
        broken += _file_problems(files, subject.plan())
        evidence = (
            f"{len(files.ledger.records)} ledger lines form an intact chain, match the plan, and cost the reported "
            "epsilon"
        )
        return summarize(NAME, broken, evidence, "lines that were rewritten with the run's own key are not detected")

    with tempfile.TemporaryDirectory() as folder:
        training = subject.shortened(_ROUNDS).training(data, folder=Path(folder), test=None, **_PLAIN)
        for _ in training:
            pass
        ledger = LedgerFile.read(Path(folder) / "ledger.jsonl")
        reported = training.result().spent.epsilon
        if training.folder is not None:
            training.folder.close()
    broken += _plan_deviations(ledger, training.plan)
    cost = account(ledger.records, training.plan.n_clients, training.plan.privacy.delta).epsilon
    if reported < cost * (1 - _SLACK):
        broken.append(f"the reported epsilon is {reported:.4g}, and the ledger's lines cost {cost:.4g}")
    evidence = (
        f"every query result has its ledger line; {len(ledger.records)} lines of {_ROUNDS} rounds form an intact "
        "chain and match the plan"
    )
    power = "a short run with the same settings was checked; pass a run's folder to check its files"
    return summarize(NAME, broken, evidence, power)


def _unrecorded_releases(subject: AuditTarget, data: Data) -> Iterator[str]:
    """Yields a text if a short run releases results without a record."""
    queries = trace_run(subject, data, _ROUNDS).unrecorded
    if queries:
        names = ", ".join(sorted(set(queries)))
        yield f"{len(queries)} query results ({names}) were released without a ledger line"


def _plan_deviations(ledger: LedgerFile, plan: Plan) -> Iterator[str]:
    """Yields a text for each difference between the ledger of a finished run and its plan."""
    if ledger.altered:
        yield ledger.altered
        return
    by_key = {(record.round, record.query, record.index): record for record in plan.records}
    for written in ledger.records:
        key = (written.round, written.query, written.index)
        planned = by_key.pop(key, None)
        if planned is None:
            yield f"the ledger has {key}, which was not planned or had been released before"
            return
        if _smallest(written.noise_multiplier) < _smallest(planned.noise_multiplier) * (1 - _SLACK):
            yield f"round {written.round} was recorded with less noise than planned"
            return


def _smallest(multiplier: float | tuple[float, ...]) -> float:
    if isinstance(multiplier, tuple):
        return min(multiplier)
    return multiplier


def _file_problems(files: RunFiles, plan: Plan) -> Iterator[str]:
    """Yields a text for each contradiction between the files of a run, or with its plan."""
    problems = [problem.text for problem in (*find_problems(files), *compare_with_plan(files, plan))]
    yield from problems
    if not problems:
        yield from _understated_rounds(files)


def _understated_rounds(files: RunFiles) -> Iterator[str]:
    """Yields a text if the metrics of a round state a smaller epsilon than the cost of the releases up to then."""
    header = files.ledger.header
    rows = [row for row in files.metrics if row.get("epsilon") is not None]
    if header.n_clients is None or header.delta is None:
        return
    for row in rows[:: max(len(rows) // _ROWS, 1)]:
        stated = float(row["epsilon"])
        records = files.ledger.records[: row.get("releases", 0)]
        if records:
            cost = account(records, header.n_clients, header.delta).epsilon
        else:
            cost = 0.0
        if math.isfinite(cost) and stated < cost * (1 - _SLACK):
            yield f"round {row['round']} reported epsilon {stated:.4g}, and the ledger lines up to it cost {cost:.4g}"
            return
