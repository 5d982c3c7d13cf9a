"""Check 7: the ledger has a line for every release, as planned, and all files of a run tell the same."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.probing import listen
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.planning.plan import Plan
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.randomness.streams import Randomness
from fedpriv.runs import integrity
from fedpriv.runs.run_files import RunFiles

NAME = "ledger"
_ROUNDS = 2
_ROWS = 5  # of the metrics, whose epsilon is counted again
_SLACK = 1e-6


def books(subject: AuditTarget, data: Data) -> CheckResult:
    """Compare a run's files, or those of a short run, with its plan and its answers."""
    broken = list(_beside(subject, data))
    if subject.folder is not None:
        files, plan = RunFiles.read(subject.folder), subject.plan()
        broken += _of_files(files, plan)
        held = f"{len(files.ledger.records)} lines are chained, as planned, and cost what was told"
        return summarize(NAME, broken, held, "of lines that were rewritten with the run's own key nothing is seen")
    with tempfile.TemporaryDirectory() as folder:
        training = subject.shortened(_ROUNDS).training(data, folder=Path(folder), test=None, **_PLAIN)
        for _ in training:
            pass
        ledger, told = LedgerFile.read(Path(folder) / "ledger.jsonl"), training.result().spent.epsilon
        if training.folder is not None:
            training.folder.close()
    broken += _of_ledger(ledger, training.plan)
    cost = account(ledger.records, training.plan.n_clients, training.plan.privacy.delta).epsilon
    if told < cost * (1 - _SLACK):
        broken.append(f"epsilon {told:.4g} was told, and the ledger's lines cost {cost:.4g}")
    held = f"every answer has its line; {len(ledger.records)} lines of {_ROUNDS} rounds are chained and as planned"
    return summarize(
        NAME, broken, held, "looked at a short run of the same settings; give a run's folder for its files"
    )


_PLAIN = {"metrics": None, "stop": None, "client_tests": None, "optimum": None}


def _beside(subject: AuditTarget, data: Data) -> Iterator[str]:
    found = listen(subject, data, _ROUNDS).beside
    if found:
        yield f"{len(found)} answers ({', '.join(sorted(set(found)))}) were released beside the ledger, without a line"


def _of_ledger(ledger: LedgerFile, plan: Plan) -> Iterator[str]:
    """What the ledger of a run that is over says otherwise than its plan."""
    if ledger.altered:
        yield ledger.altered
        return
    if len(ledger.records) != len(plan.records):
        yield f"{len(plan.records)} releases were planned, and the ledger has {len(ledger.records)}"
    for planned, written in zip(plan.records, ledger.records, strict=False):
        at = (planned.round, planned.query, planned.index), (written.round, written.query, written.index)
        if at[0] != at[1]:
            yield f"{at[0]} was planned where the ledger has {at[1]}"
            return
        if _least(written.noise_multiplier) < _least(planned.noise_multiplier) * (1 - _SLACK):
            yield f"round {written.round} was written down with less noise than planned"
            return


def _least(multiplier: float | tuple[float, ...]) -> float:
    if isinstance(multiplier, tuple):
        return min(multiplier)
    return multiplier


def _of_files(files: RunFiles, plan: Plan) -> Iterator[str]:
    found = [one.text for one in (*integrity.findings(files), *integrity.against_plan(files, plan))]
    if files.checkpoint is not None and not found:
        saved = files.checkpoint
        unsealed = integrity.unsealed(files, Randomness(0, int(saved.secret_seed, 16), run=saved.run).seal_key())
        found += [] if unsealed is None else [unsealed.text]
    yield from found
    if not found:
        yield from _of_rows(files)


def _of_rows(files: RunFiles) -> Iterator[str]:
    """An epsilon that was told in some round is at least what had been released by then."""
    header, rows = files.ledger.header, [row for row in files.metrics if row.get("epsilon") is not None]
    if header.n_clients is None or header.delta is None:
        return
    for row in rows[:: max(len(rows) // _ROWS, 1)]:
        told, records = float(row["epsilon"]), files.ledger.records[: row.get("releases", 0)]
        if records:
            cost = account(records, header.n_clients, header.delta).epsilon
        else:
            cost = 0.0
        if math.isfinite(cost) and told < cost * (1 - _SLACK):
            yield f"round {row['round']} told epsilon {told:.4g}, and the lines so far cost {cost:.4g}"
            return
