"""Audits the subject of a command, and prints each finding as soon as it is available."""

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
from fedpriv.audit.targets import target_from_config, target_from_folder, target_from_strategy
from fedpriv.cli import shipped
from fedpriv.cli.printing import err, out, print_json
from fedpriv.config import load_config
from fedpriv.errors import ConfigError, PromiseWarning
from fedpriv.storage import strict_json, write_whole

_COLOURS = {"held": "green", "found": "bold red", "not checked": "yellow"}


def run(subject: str, settings: Sequence[str], folder: Path | None, runs: Path | None, *, as_json: bool) -> Audit:
    """Runs all checks.

    Args:
        subject: A configuration, the folder of a run, or `package.module:Name` of a strategy.
        settings: `section.field=value` each.
        folder: Folder for the audit's files; None for none.
        runs: Folder of other runs; if None, the parent of a run's folder, or `runs`.
        as_json: Print one JSON object.
    """

    def show(finding: CheckResult) -> None:
        if not as_json:
            _print_finding(finding)

    with warnings.catch_warnings(), err.status("auditing"):
        warnings.simplefilter("ignore", PromiseWarning)  # a run prints the warnings about its privacy
        result = audit(_audit_target(subject, settings, runs), progress=show)
    content = strict_json.to_plain(result.to_json())
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "audit.json", strict_json.dumps(content, indent=2).encode())
        draw(result, folder / "audit.png")
    if as_json:
        print_json(content)
    else:
        out.print(f"[yellow]note:[/] {SECRET}")
    return result


def _audit_target(subject: str, settings: Sequence[str], runs: Path | None) -> AuditTarget:
    """Returns the subject of the command, with the folder of other runs."""
    path = Path(subject)
    if not runs:
        if path.is_dir():
            runs = path.resolve().parent
        else:
            runs = Path("runs")
        if not runs.is_dir():
            runs = None
    return replace(_named_target(path, subject, settings), runs=runs)


def _named_target(path: Path, subject: str, settings: Sequence[str]) -> AuditTarget:
    if path.is_dir():
        if settings:
            raise ConfigError(
                "override",
                settings[0],
                "cannot change the settings of a run: leave it out, or audit the run's config.yaml with this setting",
            )
        return target_from_folder(path)
    if ":" in subject and not path.exists():
        return target_from_strategy(subject, settings)
    return target_from_config(load_config(shipped.resolve(path), settings), subject)


def _print_finding(finding: CheckResult) -> None:
    colour = _COLOURS[finding.verdict]
    out.print(f"[{colour}]{finding.verdict:<11}[/] [bold]{finding.name}[/]: {escape(finding.evidence)}")
    if finding.power:
        out.print(f"{'':<12}{escape(finding.power)}", style="dim")
