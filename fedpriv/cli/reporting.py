"""Writes the report of runs, one HTML file, and opens it."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.cli.drawing import draw_figure
from fedpriv.cli.printing import print_json, print_rows, spinner_with_text
from fedpriv.config.files import load_config
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.network import Graph
from fedpriv.reports.accounts import compute_account
from fedpriv.reports.html_report import render_report
from fedpriv.reports.report import Run
from fedpriv.reports.run_statement import make_statement
from fedpriv.runs import CONFIG_FILE, find_linked_graph
from fedpriv.storage import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(folders: Sequence[Path], path: Path, *, open_it: bool, as_json: bool) -> None:
    """Writes the report of runs.

    Args:
        folders: Folders of runs.
        path: The HTML file.
        open_it: Open it in the browser.
        as_json: Print one JSON object.

    Raises:
        ConfigError: If the file's name does not end in .html.
        FedprivError: If a folder holds no run, or its files are altered or incomplete.
    """
    if path.suffix != ".html":
        raise ConfigError("--out", str(path), "a report is an HTML file: use a name that ends in .html")
    with spinner_with_text("counting and drawing"):
        runs = [Run.read(folder) for folder in folders]
        plans = [recover_plan(run.files) for run in runs]
        statement = make_statement(runs, compute_account([run.files for run in runs], plans))
        page = render_report(runs, statement, plans, _graph_of)
    write_whole(path, page)
    if as_json:
        print_json({"report": str(path), "bytes": len(page), "runs": [str(folder) for folder in folders]})
    else:
        print_rows({"report": str(path), "privacy": statement.summary})
    if open_it:
        webbrowser.open(path.resolve().as_uri())


def _graph_of(run: Run) -> Figure | None:
    """Draws the graph of a run's settings; None for a star, for a large graph, or if the settings cannot be used."""
    n_clients = run.files.ledger.header.n_clients
    if n_clients is None:
        return None
    try:
        if run.files.config is None:
            network = find_linked_graph(run.config["network"])
        else:
            network = load_config(run.folder / CONFIG_FILE).network.build(n_clients)
    except FedprivError:
        return None
    if isinstance(network, Graph):
        return draw_figure(network)
    return None
