"""A report of runs to send: one HTML file with pictures, numbers, the privacy statement and the settings in it.

The page loads nothing: no script, font or picture from elsewhere. Its numbers are the numbers of `fedpriv show` and of
the privacy statement, computed again from the runs' ledgers.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.evaluation import metrics
from fedpriv.privacy.accounting import round_up
from fedpriv.reports import comparison, wording
from fedpriv.reports.pages import render_template
from fedpriv.reports.report import Run
from fedpriv.reports.spending import PlannedSpending
from fedpriv.reports.statement import Statement
from fedpriv.runs import curves
from fedpriv.storage import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROUNDS = 25  # rows of the table of rounds
_MOST_CLIENTS = 100  # rows of the table of clients


@dataclass(frozen=True)
class Picture:
    """A picture inside the page.

    Attributes:
        source: The picture as a `data:` URI.
        text: Description of the picture, for screen readers.
    """

    source: str
    text: str


@dataclass(frozen=True)
class RunPart:
    """The contents of the page for one run.

    Attributes:
        name: Its folder.
        title: Strategy, model and data.
        cards: The most important numbers: name, value and a remark.
        curves: Test metric and epsilon against rounds.
        rows: The output of `fedpriv show`.
        rounds: Headings and rows: metrics and spending after some of the rounds.
        clients: Headings and rows, one for each client; empty if there is one client.
        clients_left_out: Number of clients that the table leaves out.
        graph: The communication graph; None for a server and its clients.
        settings_name: Name of the file with the settings.
        settings: Its text.
    """

    name: str
    title: str
    cards: tuple[tuple[str, str, str], ...]
    curves: Picture
    rows: dict[str, str]
    rounds: tuple[tuple[str, ...], ...]
    clients: tuple[tuple[str, ...], ...]
    clients_left_out: int
    graph: Picture | None
    settings_name: str
    settings: str


def render_report(
    runs: Sequence[Run],
    statement: Statement,
    plans: Sequence[PlannedSpending],
    draw_graph: Callable[[Run], Figure | None],
) -> bytes:
    """Returns the page.

    Args:
        runs: The runs, finished or not.
        statement: Their privacy statement.
        plans: The facts known about each run besides its files.
        draw_graph: Draws a run's communication graph; None if it has none.
    """
    overlay = None
    table = list[list[str]]()
    notes = list[str]()
    if len(runs) > 1:
        overlay = _overlay(runs)
        table = comparison.make_cells(runs)
        notes = comparison.collect_notes(runs, plans)
    return render_template(
        "report.html.jinja",
        title=_title(runs),
        statement=statement,
        overlay=overlay,
        table=table,
        notes=notes,
        parts=[_part(run, draw_graph) for run in runs],
    )


def _title(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return runs[0].title
    return f"{len(runs)} runs compared"


def _part(run: Run, draw_graph: Callable[[Run], Figure | None]) -> RunPart:
    graph = draw_graph(run)
    graph_picture = None
    if graph is not None:
        graph_picture = _picture(graph, "The communication graph: messages between clients")
    clients, left_out = _clients(run)
    figure = new_figure(*curves.SIZE)
    curves.draw(run, figure)
    return RunPart(
        name=str(run.folder),
        title=run.title,
        cards=_cards(run),
        curves=_picture(figure, f"Test metric and epsilon of {run.folder} against rounds"),
        rows=run.rows(),
        rounds=_rounds(run),
        clients=clients,
        clients_left_out=left_out,
        graph=graph_picture,
        settings_name=run.files.settings_path.name,
        settings=run.files.settings_path.read_text(encoding="utf-8"),
    )


def _cards(run: Run) -> tuple[tuple[str, str, str], ...]:
    """Returns the most important numbers of a run."""
    facts = run.to_json()
    cards = [
        (metric.title, metric.text(float(facts[metric.name])), "on public test data")
        for metric in metrics.list_headline_metrics()
        if facts.get(metric.name) is not None
    ][:2]
    spent = run.spent
    if spent is None:
        cards.append(("epsilon", "unknown", run.integrity))
    elif math.isinf(spent.epsilon):
        cards.append(("epsilon", "infinite", "not private"))
    else:
        remark = f"delta={wording.format_small(spent.delta)}, {spent.relation}"
        cards.append(("epsilon", round_up(spent.epsilon), remark))
        unit = {"sample": "one example", "client": "one client"}[spent.unit]
        cards.append(("protected", unit, f"trust: {spent.trust}"))
    cards.append(("rounds", str(run.rounds), f"{len(run.files.ledger.records)} releases in the ledger"))
    return tuple(cards)


def _rounds(run: Run) -> tuple[tuple[str, ...], ...]:
    """Returns metrics and spending after at most 25 rounds, evenly spaced, including the last one."""
    measured = [metric for metric in metrics.list_headline_metrics() if run.column(metric.name)[1]]
    rows = [row for row in run.metrics if not measured or any(row.get(metric.name) is not None for metric in measured)]
    if not rows:
        return ()
    step = -(-len(rows) // _MOST_ROUNDS)
    lines = [("round", "epsilon spent", "releases so far", *(metric.title for metric in measured))]
    for row in reversed(rows[::-1][::step]):
        values = ["" if row.get(m.name) is None else m.text(float(row[m.name])) for m in measured]
        lines.append((str(row["round"]), _epsilon(row["epsilon"]), str(row.get("releases", "")), *values))
    return tuple(lines)


def _clients(run: Run) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Returns a row for each client, and the number of clients that are left out.

    There are no rows for one client, for an unfinished run, or if all clients have the same outcome.
    """
    result: Mapping[str, Any] = run.result or {}
    epsilons: Sequence[float | str] = result.get("per_client_epsilon") or ()
    tests: Mapping[str, Mapping[str, float]] = result.get("client_tests") or {}
    is_same = len(set(epsilons)) < 2 and not tests
    if is_same or run.spent is None:
        return (), 0
    names = result.get("client_names") or [f"client {index}" for index in range(len(epsilons))]
    measured = [metric for metric in metrics.TESTED if any(metric.name in values for values in tests.values())]
    lines = [("client", "epsilon", *(f"own {metric.title}" for metric in measured))]
    for name, epsilon in itertools.islice(zip(names, epsilons, strict=True), _MOST_CLIENTS):
        values = tests.get(name, {})
        texts = [metric.text(float(values[metric.name])) if metric.name in values else "" for metric in measured]
        lines.append((str(name), _epsilon(epsilon), *texts))
    return tuple(lines), max(0, len(epsilons) - _MOST_CLIENTS)


def _epsilon(value: float | str) -> str:
    """Returns an epsilon as text, rounded up."""
    if math.isfinite(float(value)):
        return round_up(float(value))
    return "infinite"


def _overlay(runs: Sequence[Run]) -> Picture:
    """Draws the test metric and epsilon of several runs into one picture, each with a different colour and dash."""
    figure = new_figure(8.0, 6.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    shown = next((m for m in metrics.list_headline_metrics() if any(run.column(m.name)[1] for run in runs)), None)
    styles = zip(itertools.cycle(COLORS), itertools.cycle(("-", "--", "-.", ":")), strict=False)
    for run, (color, dash) in zip(runs, styles, strict=False):
        if shown is not None:
            rounds, values = run.column(shown.name)
            top.plot(
                rounds, [100 * v if shown.percent else v for v in values], dash, color=color, label=run.folder.name
            )
        rounds, values = run.column("epsilon")
        finite = [value if math.isfinite(value) else math.nan for value in values]
        bottom.plot(rounds, finite, dash, color=color, label=run.folder.name)
    if shown is not None:
        top.set_ylabel(shown.title + (", %" if shown.percent else ""))
    bottom.set_ylabel("epsilon spent")
    bottom.set_xlabel("round")
    bottom.set_ylim(bottom=0)
    curves.draw_legend_below(figure, bottom)
    for axes in (top, bottom):
        curves.tidy_axes(axes)
    figure.align_ylabels()
    names = ", ".join(run.folder.name for run in runs)
    return _picture(figure, f"Test metric and epsilon of {names} against rounds; infinite epsilons are left out")


def _picture(figure: Figure, text: str) -> Picture:
    """Returns a figure as SVG inside a `data:` URI, so that names in several pictures of a page do not collide."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return Picture(f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}", text)
