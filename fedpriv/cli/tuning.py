"""Search for settings, and print what the search costs before anything is released."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from fedpriv.cli import shipped
from fedpriv.cli.printing import busy_with, err, print_json, print_rows
from fedpriv.config import load_config
from fedpriv.errors import PromiseWarning
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.storage import strict_json
from fedpriv.tuning import Outcome, Search, SearchSettings, Space
from fedpriv.tuning.picture import draw

if TYPE_CHECKING:
    from fedpriv.runs.results import RoundReport

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
    """Plan a search, and run it unless only its plan is wanted.

    Raises:
        FedprivError: it cannot run, costs more than it may, or the folder holds another search.
        typer.Exit: it was stopped.
    """
    search = Search(load_config(shipped.found(config), overrides), Space.read(space), settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)  # said by plan and train
        with busy_with("planning"):
            price = search.price
        told = {"trials": settings.trials, "hidden": settings.hidden, "rests_on": price.rests_on}
        told |= {"epsilon": strict_json.epsilon(price.spent.epsilon), "delta": price.spent.delta}
        told |= {"accountant": price.spent.accountant, "one_trial": strict_json.epsilon(price.one.epsilon)}
        if not as_json:
            _print_plan(search)
        if plan_only:
            if as_json:
                print_json(told)
            return
        path = folder or _free(Path("runs"))
        err.print(f"searching in {path}")
        try:
            found = search.run(path, _tell)
        except KeyboardInterrupt:
            err.print(f"\nstopped; the same command with --out {path} goes on, and no trial is paid for twice")
            raise typer.Exit(130) from None
    if settings.hidden is None:
        draw(found, search.space, settings, path / _PICTURE)
    if found.best is None:
        best = None
    else:
        best = str(found.best)
    if as_json:
        print_json({**told, "folder": str(path), "best": best, "chosen": found.chosen, "score": found.score})
    else:
        _print_found(found, settings, path)


def _print_plan(search: Search) -> None:
    settings, price = search.settings, search.price
    if settings.hidden is None:
        count = str(settings.trials)
    else:
        count = f"{settings.trials} on average, a secret number"
    rows = {
        "trials": f"{count}, chosen by {settings.sampler} sampling, scored by {settings.scored_on}",
        "one trial": f"epsilon={round_up(price.one.epsilon)}" if price.one.epsilon < float("inf") else "epsilon=inf",
        "the search": str(price.spent),
        "rests on": price.rests_on,
    }
    print_rows(rows)


def _print_found(found: Outcome, settings: SearchSettings, path: Path) -> None:
    if found.chosen is None:
        print_rows({"best": "none: no trial has a finite score", "paid": str(found.price.spent)})
        return
    rows = {
        "best": f"{settings.metric}={found.score:.4g}, in {found.best}",
        **{name: str(value) for name, value in found.chosen.items()},
        "paid": str(found.price.spent),
    }
    print_rows(rows | ({"picture": str(path / _PICTURE)} if settings.hidden is None else {}))


def _tell(number: int, report: RoundReport) -> None:
    if report.round == report.rounds:
        told = ", ".join(f"{name}={value:.4g}" for name, value in report.metrics.items() if name.startswith("test_"))
        err.print(f"trial {number}: {escape(told) or 'has ended'}")


def _free(parent: Path) -> Path:
    number = 1
    while (parent / f"tune-{number}").exists():
        number += 1
    return parent / f"tune-{number}"
