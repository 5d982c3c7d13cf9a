"""A result in a notebook: a card, a table of its rounds, a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from fedpriv.measuring import metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def card(title: str, rows: Mapping[str, str]) -> str:
    """A table of two columns as HTML; its entries are escaped."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def table(rows: Rows) -> Any:  # noqa: ANN401 - a data frame, where there is pandas
    """A pandas DataFrame with one row for each round; a list of dicts if pandas is not installed."""
    try:
        import pandas  # a library of the user's, not one of fedpriv's
    except ImportError:
        return [dict(row) for row in rows]
    return pandas.DataFrame.from_records([dict(row) for row in rows])


def curves(rows: Rows, title: str) -> Figure:
    """The test metric and epsilon against rounds, by matplotlib's pyplot."""
    from matplotlib import pyplot

    measured = metrics.panel(lambda name: any(name in row for row in rows))
    own = [metric.name for metric in metrics.own(dict.fromkeys(name for row in rows for name in row))]
    shown = [[metric.name for metric in measured], *([own] if own else []), ["epsilon"]]
    figure, panels = pyplot.subplots(len(shown), 1, sharex=True, layout="constrained")
    for axes, names in zip(panels, shown, strict=True):
        for name in names:
            points = [(row["round"], row[name]) for row in rows if name in row]
            mark = "." if len(points) < 50 else ""
            axes.plot([at for at, _ in points], [value for _, value in points], marker=mark, label=name)
        axes.set_ylabel(names[0].replace("_", " "))
        axes.grid(axis="y", alpha=0.3)
        if len(names) > 1:
            axes.legend()
    panels[-1].set_xlabel("round")
    figure.suptitle(title)
    return figure
