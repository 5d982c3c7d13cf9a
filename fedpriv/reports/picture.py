"""Pictures: a run's test metric and its epsilon against rounds, and what is spent of a budget."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.reports.report import Run
from fedpriv.runs import curves
from fedpriv.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GREY = "#5F6368"


def draw(run: Run, path: Path) -> None:
    """Draws the test metric and epsilon against rounds.

    Args:
        run: The run.
        path: PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=curves.SIZE, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    curves.draw(run, figure)
    _write(figure, path)


def draw_budget(spent: Mapping[int, float], limit: float, begins: Mapping[int, str], title: str, path: Path) -> None:
    """Draws what is spent of a budget.

    Args:
        spent: By a number of rounds, the finite epsilon spent after them.
        limit: The budget.
        begins: By a number of rounds, the name of what began after them.
        title: Title of the picture.
        path: PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    curves.draw_spent(axes, [*spent], [*spent.values()], limit, f"budget {limit:g}")
    for n_rounds, name in begins.items():
        axes.axvline(n_rounds, color=_GREY, linewidth=0.6, linestyle=":")
        axes.annotate(name, (n_rounds, 0), (3, 16), textcoords="offset points", rotation=90, fontsize=7, color=_GREY)
    axes.set_xlabel("rounds answered, in all federations")
    axes.set_ylabel("epsilon spent")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    curves.tidy(axes)
    _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
