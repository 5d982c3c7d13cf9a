"""Checks that the files of a run are complete and consistent.

A run writes the ledger first, then the metrics, then the checkpoint. After a crash, a file may therefore contain more
rounds than the files that are written after it. If a file contains fewer rounds than a file that is written after it,
it has lost lines (*incomplete*). Files that contradict each other were changed (*altered*). For the limits of the
ledger's hash chain see docs/reliability.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from fedpriv.errors import LedgerError
from fedpriv.planning.plan import Plan
from fedpriv.privacy.chain import is_linked
from fedpriv.privacy.ledger import LedgerPosition
from fedpriv.runs.run_files import RunFiles
from fedpriv.runs.settings_text import format_difference, format_settings
from fedpriv.storage.identity import digest_config

_KIND = ("unit", "relation")
_SLACK = 1e-6  # relative: an epsilon computed again on another machine may differ in its last bits


@dataclass(frozen=True)
class IntegrityProblem:
    """A problem in a run's files.

    Attributes:
        kind: `"incomplete"`: something is missing. `"altered"`: something was changed.
        text: A sentence that describes the problem.
    """

    kind: Literal["incomplete", "altered"]
    text: str


def find_problems(files: RunFiles) -> list[IntegrityProblem]:
    """Compares a run's files and returns the problems. The list is empty for an intact run, also after a crash."""
    if files.ledger.altered:
        return [IntegrityProblem("altered", files.ledger.altered)]
    problems = [*_check_heads(files), *_check_rounds(files), *_check_config(files)]
    if files.result is not None:
        problems += _check_result(files, files.result)
    if problems:
        return problems
    # costs are compared only if the files fit each other
    return [*_check_records(files)]


def raise_problems(problems: Sequence[IntegrityProblem]) -> None:
    """Raises an error that lists the problems, if there are any.

    Raises:
        LedgerError: If there are problems.
    """
    if problems:
        texts = "; ".join(f"{problem.kind}: {problem.text}" for problem in problems)
        raise LedgerError(f"{texts}. The privacy cost is unknown: restore the files from a copy")


def check_resumed(folder: Path, plan: Plan) -> None:
    """Checks that a stopped run can resume because its files are consistent with each other and with its plan.

    Args:
        folder: The run's folder.
        plan: The plan, computed again from the settings.

    Raises:
        LedgerError: If the files do not fit, or the ledger is missing or damaged.
    """
    files = RunFiles.read(folder)
    problems = find_problems(files)
    if not problems:
        problems = [*compare_with_plan(files, plan)]
    raise_problems(problems)


def compare_with_plan(files: RunFiles, plan: Plan) -> Iterator[IntegrityProblem]:
    """Yields contradictions between a ledger and the run's plan: header facts that differ, or records with more noise
    than planned.
    """
    header = files.ledger.header
    privacy = plan.privacy
    facts = {"n_clients": plan.n_clients, "delta": privacy.delta, "planned": len(plan.records)}
    for name, planned in facts.items():
        noted = getattr(header, name)
        if noted is not None and noted != planned:
            text = f"{files.ledger.path}, line 1 has {name} = {noted!r}, but the run's plan has {planned!r}"
            yield IntegrityProblem("altered", text)
    planned_records = {(record.round, record.query, record.index): record for record in plan.records}
    for number, record in enumerate(files.ledger.records, start=2):
        planned_record = planned_records.get((record.round, record.query, record.index))
        if planned_record is None:
            continue
        planned = planned_record.noise_multiplier
        if planned_record.pairs != record.pairs:
            yield IntegrityProblem(
                "altered", f"{files.ledger.path}, line {number} has noise of other pairs than the plan"
            )
            return
        if planned_record.time != record.time:
            yield IntegrityProblem(
                "altered", f"{files.ledger.path}, line {number} has noise of another matrix than the plan"
            )
            return
        if _largest(record.noise_multiplier) > _largest(planned) * (1 + _SLACK):
            noted = f"noise multiplier {record.noise_multiplier!r}, but the plan has {planned!r}"
            yield IntegrityProblem("altered", f"{files.ledger.path}, line {number} has {noted}")
            return


def _largest(multiplier: float | tuple[float, ...]) -> float:
    if isinstance(multiplier, tuple):
        return max(multiplier)
    return multiplier


def _marks(files: RunFiles) -> Iterator[tuple[str, LedgerPosition]]:
    """Yields the ledger position that each of the other files contains, with a text for errors."""
    if files.checkpoint is not None:
        yield "the checkpoint counts", LedgerPosition(files.checkpoint.records, files.checkpoint.head)
    for row in files.metrics:
        if "releases" in row:
            yield "metrics.jsonl counts", LedgerPosition(row["releases"], row.get("head"))
    if files.result is not None:
        yield "result.json counts", LedgerPosition(files.result["releases"], files.result.get("head"))


def _check_heads(files: RunFiles) -> Iterator[IntegrityProblem]:
    """Compares the ledger with the other files, which contain its number of records and the hash of the last one."""
    ledger = files.ledger
    n_records = len(ledger.texts)
    result = files.result
    counter, counted = max(_marks(files), key=lambda mark: mark[1].releases, default=("", LedgerPosition(0, None)))
    if counted.releases > n_records:
        yield IntegrityProblem("incomplete", f"{ledger.path} has {n_records} records, but {counter} {counted.releases}")
    if result is not None and result["releases"] < n_records:
        yield IntegrityProblem(
            "altered", f"{ledger.path} has {n_records} records, but result.json counts {result['releases']}"
        )
    if n_records and result is None and files.checkpoint is None and files.unread is None:
        yield IntegrityProblem("incomplete", f"{files.folder / 'checkpoint.pt'} is missing")
    if files.unread is not None:
        yield IntegrityProblem("incomplete", files.unread)
    for counter, mark in _marks(files):
        if mark.releases <= n_records and mark.head != ledger.head(mark.releases):
            text = f"{counter} {mark.releases} records and contains a hash of the last record that differs from"
            yield IntegrityProblem("altered", f"{text} line {mark.releases + 1} of {ledger.path}")
            return


def _check_rounds(files: RunFiles) -> Iterator[IntegrityProblem]:
    """Checks that the metrics have one row for each round of the result or the checkpoint."""
    rounds = [row["round"] for row in files.metrics]
    path = files.folder / "metrics.jsonl"
    gap = next((number for number, round_number in enumerate(rounds, start=1) if number != round_number), None)
    if gap is not None:
        yield IntegrityProblem("incomplete", f"{path} lacks round {gap}, or has rounds in another order")
    elif files.result is not None and len(rounds) != files.result["rounds"]:
        if len(rounds) < files.result["rounds"]:
            kind = "incomplete"
        else:
            kind = "altered"
        yield IntegrityProblem(
            kind, f"{path} has {len(rounds)} rounds, but result.json has {files.result['rounds']} rounds"
        )
    elif files.checkpoint is not None and files.settings is not None and len(rounds) < files.checkpoint.round:
        yield IntegrityProblem(
            "incomplete", f"{path} has {len(rounds)} rounds, but the checkpoint has {files.checkpoint.round} rounds"
        )


def _check_config(files: RunFiles) -> Iterator[IntegrityProblem]:
    """Checks that the settings are unchanged since the run began."""
    digest_at_start = files.ledger.header.config
    if files.settings is not None and digest_at_start is not None and digest_config(files.settings) != digest_at_start:
        changed = _changed_settings(files)
        which = f" ({changed})" if changed else ""
        yield IntegrityProblem("altered", f"{files.settings_path} has changed since the run began{which}")


def _changed_settings(files: RunFiles) -> str:
    """Returns the settings of the configuration that changed since the checkpoint; empty if unknown."""
    if files.checkpoint is None:
        words = {}
    else:
        words = files.checkpoint.words
    before = {name: text for name, text in words.items() if name.startswith("config.")}
    after = format_settings(config=files.settings)
    if before:
        return format_difference(before, {name: after[name] for name in after if not name.startswith("config.log")})
    return ""


def _privacy_setting(files: RunFiles, name: str) -> Any:  # noqa: ANN401 - a setting is what it is
    """Returns a privacy setting of the run; None if its settings do not have it."""
    privacy = (files.settings or {}).get("privacy")
    if isinstance(privacy, dict):
        return cast("dict[str, Any]", privacy).get(name)
    return None


def _check_turns(files: RunFiles) -> Iterator[IntegrityProblem]:
    """Checks that the number of alternating blocks of examples or clients matches the settings, because more blocks
    have a lower privacy cost.
    """
    time = next((record.time for record in files.ledger.records), None)
    settings = files.settings
    if time is None or settings is None:
        return
    network = settings.get("network")
    if isinstance(network, dict):
        cohort: Any = network.get("cohort")
    else:
        cohort = None
    if _privacy_setting(files, "unit") == "client":
        setting = cohort
    else:
        setting = _privacy_setting(files, "sampling")
    blocks = _blocks(setting)
    if blocks != time.separation:
        text = f"{files.settings_path.name} has {blocks!r} cyclic blocks, but the ledger {time.separation}"
        yield IntegrityProblem("altered", text)


def _blocks(setting: Any) -> Any:  # noqa: ANN401 - a setting is what it is
    """Returns the number of alternating blocks in the setting of batches or of cohorts; 1 without blocks."""
    if not isinstance(setting, dict):
        return 1
    fields = cast("dict[str, Any]", setting)
    if fields.get("name") in ("Cyclic", "CyclicCohort"):  # of a Python program
        return fields.get("blocks")
    cyclic: Any = fields.get("cyclic")
    if isinstance(cyclic, dict):
        return cast("dict[str, Any]", cyclic).get("blocks")
    return 1


def _check_result(files: RunFiles, result: dict[str, Any]) -> Iterator[IntegrityProblem]:
    """Checks that the result was computed at the end of the run."""
    if not is_linked(result, str(result.get("head"))):
        yield IntegrityProblem("altered", f"{files.folder / 'result.json'} was changed after it was written")


def _check_records(files: RunFiles) -> Iterator[IntegrityProblem]:
    """Compares the records with the privacy settings, and their epsilon with the target and with the result."""
    counted = files.counted
    target = _privacy_setting(files, "epsilon")
    released: dict[str, Any] = {}
    if _privacy_setting(files, "noise_on") != "none":
        released["delta"] = counted.delta
        for record in files.ledger.records[:1]:
            released |= {name: getattr(record, name) for name in _KIND}
    for name, released_value in released.items():
        if _privacy_setting(files, name) not in (None, released_value):
            yield IntegrityProblem(
                "altered",
                f"{files.settings_path.name} has {name} = {_privacy_setting(files, name)!r}, but the ledger "
                f"{released_value!r}",
            )
    yield from _check_turns(files)
    if isinstance(target, int | float) and target * (1 + _SLACK) < counted.epsilon < math.inf:
        text = f"the ledger's records cost more than the {target:g} that {files.settings_path.name} allows"
        yield IntegrityProblem("altered", text)
    if files.result is not None:
        reported = float(files.result["epsilon"])
        whole = files.result["ended"] in ("rounds", "budget")
        # a run that its strategy ended is charged for its whole plan, but the ledger contains only a part
        if not math.isclose(reported, counted.epsilon, rel_tol=_SLACK) and (whole or reported < counted.epsilon):
            text = (
                f"the epsilon of {reported:.4g} in result.json differs from the one computed from the ledger's records"
            )
            yield IntegrityProblem("altered", f"{text}, unless another version of fedpriv computed it")
