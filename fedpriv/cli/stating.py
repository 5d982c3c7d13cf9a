"""Write the page about runs that a data-protection officer can file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fedpriv.cli.printing import busy_with, print_json, print_rows
from fedpriv.config.of_run import plan_of
from fedpriv.errors import ConfigError
from fedpriv.reports.accounts import account_for
from fedpriv.reports.pages import WRITERS, markdown
from fedpriv.reports.report import Run
from fedpriv.reports.spendings import spending_of
from fedpriv.reports.statement import Statement, statement_of
from fedpriv.sites.statement import draw_site, is_site, site_statement
from fedpriv.storage.files import write_whole
from fedpriv.tuning.statement import is_search, statement_of_search


def state(folders: Sequence[Path], places: Sequence[Path], *, colluders: int, group: int, as_json: bool) -> None:
    """Print the page, or write it to files.

    Raises:
        ConfigError: a file's name does not say what it is.
        FedprivError: a folder holds no run, or its files are altered or incomplete.
    """
    if len(folders) == 1 and is_site(folders[0]):
        drawn = {".png"}
    else:
        drawn = set[str]()
    for place in places:
        if place.suffix not in {*WRITERS, *drawn}:
            raise ConfigError("--out", str(place), f"name a file that ends in {', '.join([*WRITERS, *drawn])}")
    with busy_with("counting"):
        page = _page(folders, colluders, group)
    for place in places:
        if place.suffix in drawn:
            draw_site(folders[0], place)
        else:
            write_whole(place, WRITERS[place.suffix](page))
    if as_json:
        print_json({**page.to_json(), "written": [str(place) for place in places]})
    elif places:
        print_rows({"statement": page.summary, "written": ", ".join(map(str, places))})
    else:
        typer.echo(markdown(page).decode())


def _page(folders: Sequence[Path], colluders: int, group: int) -> Statement:
    for folder in folders:
        if is_site(folder):
            what = "site"
        elif is_search(folder):
            what = "search"
        else:
            what = None
        if what and len(folders) > 1:
            raise ConfigError("RUN", str(folder), f"is a {what}, which has a page of its own: name it alone")
        if what:
            if what == "site":
                page = site_statement
            else:
                page = statement_of_search
            return page(folder, colluders=colluders, group=group)
    runs = [Run.read(folder) for folder in folders]
    spendings = [spending_of(run.files, plan_of(run.files)) for run in runs]
    deltas = [0.0 if run.files.ledger.header.delta is None else run.files.ledger.header.delta for run in runs]
    return statement_of(runs, spendings, account_for(spendings, deltas, colluders=colluders, group=group))
