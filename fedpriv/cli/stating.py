"""Writes the privacy statement of runs, a site or a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fedpriv.cli.printing import print_json, print_rows, spinner_with_text
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.errors import ConfigError
from fedpriv.reports.accounts import compute_account
from fedpriv.reports.pages import WRITERS, render_markdown
from fedpriv.reports.report import Run
from fedpriv.reports.run_statement import make_statement
from fedpriv.reports.statement import Statement
from fedpriv.sites.budget_picture import draw_site
from fedpriv.sites.statement import is_site, site_statement
from fedpriv.storage import write_whole
from fedpriv.tuning.statement import is_search, search_statement


def write_statement(
    folders: Sequence[Path], outputs: Sequence[Path], *, colluders: int, group: int, as_json: bool
) -> None:
    """Prints the statement, or writes it to files.

    Args:
        folders: Folders of runs, or the folder of one site or one search.
        outputs: Files to write; their suffixes name the formats. None prints Markdown.
        colluders: Number of clients that collude.
        group: Number of records that may belong to one person.
        as_json: Print one JSON object.

    Raises:
        ConfigError: If the suffix of a file is not a known format.
        FedprivError: If a folder holds no run, or its files are altered or incomplete.
    """
    if len(folders) == 1 and is_site(folders[0]):
        picture_suffixes = {".png"}
    else:
        picture_suffixes = set[str]()
    for path in outputs:
        if path.suffix not in {*WRITERS, *picture_suffixes}:
            fix = f"must end in one of {', '.join([*WRITERS, *picture_suffixes])}"
            raise ConfigError("--out", str(path), fix)
    with spinner_with_text("counting"):
        page = _make_statement(folders, colluders, group)
    for path in outputs:
        if path.suffix in picture_suffixes:
            draw_site(folders[0], path)
        else:
            write_whole(path, WRITERS[path.suffix](page))
    if as_json:
        print_json({**page.to_json(), "written": [str(path) for path in outputs]})
    elif outputs:
        print_rows({"statement": page.summary, "written": ", ".join(map(str, outputs))})
    else:
        typer.echo(render_markdown(page).decode())


def _make_statement(folders: Sequence[Path], colluders: int, group: int) -> Statement:
    """Returns the statement of one site, of one search, or of runs."""
    for folder in folders:
        if is_site(folder):
            kind = "site"
            make = site_statement
        elif is_search(folder):
            kind = "search"
            make = search_statement
        else:
            continue
        if len(folders) > 1:
            raise ConfigError(
                "RUN", str(folder), f"is a {kind}, which has its own privacy statement: name only this folder"
            )
        return make(folder, colluders=colluders, group=group)
    runs = [Run.read(folder) for folder in folders]
    account = compute_account(
        [run.files for run in runs], [recover_plan(run.files) for run in runs], colluders=colluders, group=group
    )
    return make_statement(runs, account)
