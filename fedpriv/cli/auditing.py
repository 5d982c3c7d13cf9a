"""Audit what a command names, and print what is found as it is found."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.markup import escape

from fedpriv.audit import Audit, AuditTarget, CheckResult
from fedpriv.audit.check_result import SECRET
from fedpriv.audit.picture import draw
from fedpriv.audit.running import audit
from fedpriv.audit.targets import of_config, of_run, of_strategy
from fedpriv.cli import shipped
from fedpriv.cli.printing import err, out, print_json
from fedpriv.config import load_config
from fedpriv.errors import ConfigError, PromiseWarning
from fedpriv.storage import strict_json
from fedpriv.storage.files import write_whole

_COLOURS = {"held": "green", "found": "bold red", "not checked": "yellow"}


def run(asked: str, settings: Sequence[str], folder: Path | None, runs: Path | None, *, as_json: bool) -> Audit:
    """Make all checks.

    Args:
        asked: A configuration, the folder of a run, or `package.module:Name` of a strategy.
        settings: `section.field=value` each.
        folder: Where the audit is written; nowhere by default.
        runs: Folder of other runs; that beside a run, or `runs`, if left out.
        as_json: Print one JSON object.
    """
    with warnings.catch_warnings(), err.status("auditing"):
        warnings.simplefilter("ignore", PromiseWarning)  # what weakens a promise is said by a run
        made = audit(_subject(asked, settings, runs), tell=lambda one: None if as_json else _tell(one))
    told = strict_json.plain(made.to_json())
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "audit.json", strict_json.dumps(told, indent=2).encode())
        draw(made, folder / "audit.png")
    if as_json:
        print_json(told)
    else:
        out.print(f"[yellow]note:[/] {SECRET}")
    return made


def _subject(asked: str, settings: Sequence[str], runs: Path | None) -> AuditTarget:
    path = Path(asked)
    if path.is_dir():
        beside = path.resolve().parent
    else:
        beside = Path("runs")
    found = runs or (beside if beside.is_dir() else None)
    return replace(_named(path, asked, settings), runs=found)


def _named(path: Path, asked: str, settings: Sequence[str]) -> AuditTarget:
    if path.is_dir():
        if settings:
            raise ConfigError(
                "override", settings[0], "a run has the settings that it has: audit its config.yaml instead"
            )
        return of_run(path)
    if ":" in asked and not path.exists():
        return of_strategy(asked, settings)
    return of_config(load_config(shipped.found(path), settings), asked)


def _tell(finding: CheckResult) -> None:
    colour = _COLOURS[finding.verdict]
    out.print(f"[{colour}]{finding.verdict:<11}[/] [bold]{finding.name}[/]: {escape(finding.evidence)}")
    if finding.power:
        out.print(f"{'':<12}{escape(finding.power)}", style="dim")
