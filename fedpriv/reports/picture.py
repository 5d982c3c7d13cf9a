"""Pictures: a run's test metric and its epsilon against rounds, and the spending of a budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpriv.reports.report import Run
from fedpriv.runs import curves
from fedpriv.storage import GREY, new_figure, write_png


def draw(run: Run, path: Path) -> None:
    """Draws the test metric and epsilon against rounds.

    Args:
        run: The run.
        path: PNG file to write.
    """
    figure = new_figure(*curves.SIZE)
    curves.draw(run, figure)
    write_png(figure, path)


def draw_budget(spent: Mapping[int, float], limit: float, begins: Mapping[int, str], title: str, path: Path) -> None:
    """Draws the spending of a budget.

    Args:
        spent: The finite epsilon spent after each number of rounds.
        limit: The budget.
        begins: Names of the parts of the run that begin after each number of rounds.
        title: Title of the picture.
        path: PNG file to write.
    """
    figure = new_figure(8, 3.6)
    axes = figure.subplots()
    curves.draw_spent(axes, [*spent], [*spent.values()], limit, f"budget {limit:g}")
    for n_rounds, name in begins.items():
        axes.axvline(n_rounds, color=GREY, linewidth=0.6, linestyle=":")
        axes.annotate(name, (n_rounds, 0), (3, 16), textcoords="offset points", rotation=90, fontsize=7, color=GREY)
    axes.set_xlabel("rounds answered, in all federations")
    axes.set_ylabel("epsilon spent")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    curves.tidy_axes(axes)
    write_png(figure, path)
