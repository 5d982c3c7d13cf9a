"""Searches for settings, and prints the privacy cost of the search before anything is released."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from fedpriv.cli import shipped
from fedpriv.cli.printing import err, print_json, print_rows, spinner_with_text
from fedpriv.config import load_config
from fedpriv.errors import PromiseWarning
from fedpriv.privacy.accounting import round_up
from fedpriv.storage import strict_json
from fedpriv.tuning import Outcome, Search, SearchSettings, Space
from fedpriv.tuning.picture import draw

if TYPE_CHECKING:
    from fedpriv.runs import RoundReport

_PICTURE = "trials.png"


def run(
    config: Path,
    space: Path,
    overrides: Sequence[str],
    settings: SearchSettings,
    folder: Path | None,
    *,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Plans a search, and runs it unless `plan_only`.

    Raises:
        FedprivError: If the search cannot run or costs more than its limit, or the folder holds another search.
        typer.Exit: If the user stopped it.
    """
    search = Search(load_config(shipped.resolve(config), overrides), Space.read(space), settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)  # plan and train print it
        with spinner_with_text("planning"):
            cost = search.cost
        plan = {
            "trials": settings.trials,
            "secret_trials": settings.secret_trials,
            "rests_on": cost.rests_on,
            "epsilon": strict_json.encode_epsilon(cost.spent.epsilon),
            "delta": cost.spent.delta,
            "accountant": cost.spent.accountant,
            "one_trial": strict_json.encode_epsilon(cost.one_trial.epsilon),
        }
        if not as_json:
            _print_plan(search)
        if plan_only:
            if as_json:
                print_json(plan)
            return
        path = folder or _next_free_folder(Path("runs"))
        err.print(f"searching in {path}")
        try:
            outcome = search.run(path, _print_ended)
        except KeyboardInterrupt:
            err.print(f"\nstopped; resume it with the same command and --out {path}; each trial is charged only once")
            raise typer.Exit(130) from None
    if settings.secret_trials is None:
        draw(outcome, search.space, settings, path / _PICTURE)
    if not as_json:
        _print_outcome(outcome, settings, path)
        return
    if outcome.best is None:
        best = None
    else:
        best = str(outcome.best)
    print_json({**plan, "folder": str(path), "best": best, "chosen": outcome.chosen, "score": outcome.score})


def _print_plan(search: Search) -> None:
    settings = search.settings
    cost = search.cost
    if settings.secret_trials is None:
        count = str(settings.trials)
    else:
        count = f"{settings.trials} on average (the number is secret)"
    if cost.one_trial.epsilon < float("inf"):
        one_trial = round_up(cost.one_trial.epsilon)
    else:
        one_trial = "inf"
    rows = {
        "trials": f"{count}, chosen by {settings.sampler} sampling, scored by {settings.scored_on}",
        "one trial": f"epsilon={one_trial}",
        "the search": str(cost.spent),
        "assumes": cost.rests_on,
    }
    print_rows(rows)


def _print_outcome(outcome: Outcome, settings: SearchSettings, path: Path) -> None:
    if outcome.chosen is None:
        print_rows({"best": "none: no trial has a finite score", "paid": str(outcome.cost.spent)})
        return
    rows = {
        "best": f"{settings.metric}={outcome.score:.4g}, in {outcome.best}",
        **{name: str(value) for name, value in outcome.chosen.items()},
        "paid": str(outcome.cost.spent),
    }
    if settings.secret_trials is None:
        rows["picture"] = str(path / _PICTURE)
    print_rows(rows)


def _print_ended(number: int, report: RoundReport) -> None:
    """Prints the metrics of a trial after its last round."""
    if report.round == report.rounds:
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in report.metrics.items() if name.startswith("test_"))
        err.print(f"trial {number}: {escape(metrics) or 'has ended'}")


def _next_free_folder(parent: Path) -> Path:
    number = 1
    while (parent / f"tune-{number}").exists():
        number += 1
    return parent / f"tune-{number}"
