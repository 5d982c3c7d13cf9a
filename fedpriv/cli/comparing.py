"""Trains several configurations on one task, and prints one table."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.markup import escape

from fedpriv.cli import shipped
from fedpriv.cli.printing import err, out, print_json, spinner_with_text
from fedpriv.errors import ConfigError, PromiseWarning, format_count
from fedpriv.runs import RoundReport
from fedpriv.tuning.comparison import ConfigComparison


def run(
    words: Sequence[str],
    variants: Sequence[str],
    seeds: int,
    folder: Path | None,
    *,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Prints the privacy cost, trains, and prints and draws the comparison.

    Args:
        words: Configurations, and settings to change in all of them.
        variants: Changed settings; each is one row of the table.
        seeds: Number of runs of each.
        folder: Folder of the runs; needed unless `plan_only`.
        plan_only: Print only the privacy cost.
        as_json: Print one JSON object.

    Raises:
        ConfigError: If there is no configuration, or if the configurations cannot be compared.
        typer.Exit: If the user stopped it.
    """
    paths = [shipped.resolve(Path(word)) for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if not paths:
        raise ConfigError(
            "configuration", list(words), "must name at least one configuration, e.g. fedpriv compare a.yaml b.yaml"
        )
    if folder is None and not plan_only:
        raise ConfigError(
            "--out",
            None,
            "is required for the runs and their ledgers: name a new folder, or print only the privacy cost with --plan",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)  # plan and train print it
        comparison = ConfigComparison(paths, overrides, variants, seeds)
        number = sum(len(configs) for configs in comparison.configs.values())
        with spinner_with_text("planning"):
            cost = comparison.cost()
        together = "have different guarantees, so they have no joint privacy cost"
        if cost is not None:
            together = f"cost together: {cost}"
        err.print(f"{format_count(number, 'run')} will {escape(together)}")
        if plan_only or folder is None:
            return
        try:
            with spinner_with_text("training") as status:

                def show(name: str, report: RoundReport) -> None:
                    status.update(escape(f"{name}: round {report.round} of {report.rounds}"))

                result = comparison.run(folder, show)
        except KeyboardInterrupt:
            err.print(f"\nstopped; print what was released with: fedpriv account {folder}/*")
            raise typer.Exit(130) from None
    (folder / "comparison.json").write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(result.to_json())
    else:
        for line in str(result).splitlines():
            out.print(escape(line))
    if len(result.table()[0]) > 3:  # if there is a test metric
        result.plot().savefig(folder / "comparison.png", dpi=150)
        err.print(f"picture: {escape(str(folder / 'comparison.png'))}")
