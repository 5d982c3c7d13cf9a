"""Draws a run: its test metric and its epsilon against rounds."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpriv.errors import ConfigError, FedprivError, truncate
from fedpriv.evaluation import metrics
from fedpriv.evaluation.metrics import Metric, select_panel
from fedpriv.storage.pictures import BLUE, GREEN, GREY, PINK, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SIZE", "draw", "draw_legend_below", "draw_spent", "save_figure", "tidy_axes"]

SIZE = 8.0, 6.2
"""Width and height in inches."""
_COLUMNS = 2  # of a legend
_LINE = 13  # points, for each line of a legend
_NAME = 100  # letters per line of a legend below the panels
_TITLE = 52  # letters per line of a title with a usual name; names with more wide letters are cut at the right edge


class Curves(Protocol):
    """A source of a picture: the folder of a run, or a result."""

    @property
    def metrics(self) -> Sequence[dict[str, Any]]:
        """One row for each round."""
        ...

    @property
    def result(self) -> dict[str, Any] | None:
        """The result, as in `result.json`; None while the run is unfinished."""
        ...

    @property
    def title(self) -> str:
        """The trained model and algorithm, in one line."""
        ...

    @property
    def privacy(self) -> str:
        """The privacy spending."""
        ...

    @property
    def target(self) -> float | None:
        """Epsilon that the run may spend; None without a limit."""
        ...

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its values."""
        ...


def get_column(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Returns the rounds in which a metric was measured, and its values."""
    measured = [row for row in rows if row.get(name) is not None]
    return [row["round"] for row in measured], [float(row[name]) for row in measured]


def draw(run: Curves, figure: Figure) -> None:
    """Draws the test metric and epsilon against rounds; title and epsilon are wrapped, never cut.

    Args:
        run: The run to draw.
        figure: An empty figure of `SIZE`, with the layout `"constrained"`.
    """
    # panels: the test metric, the user's own metrics if there are any, and epsilon (or violations of constraints)
    custom = metrics.make_custom_metrics(dict.fromkeys(name for row in run.metrics for name in row))
    if custom:
        heights = (3, 2, 2)
    else:
        heights = (3, 2)
    top, *middle, bottom = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    n_lines = _draw_metric(top, run)
    for axes in middle:
        _draw_custom(axes, run, custom)
    if run.column("violation")[1]:
        _draw_violation(bottom, run)
    else:
        _draw_epsilon(bottom, run)
    bottom.set_xlabel("round")
    for axes in (top, *middle, bottom):
        tidy_axes(axes)
    figure.align_ylabels()
    title = textwrap.wrap(run.title, _TITLE)
    privacy = textwrap.wrap(run.privacy, 112)
    legend = _LINE * n_lines
    top.set_title("\n".join(title), loc="left", fontsize=13, fontweight="bold", pad=14 + 12 * len(privacy) + legend)
    top.annotate(
        "\n".join(privacy),
        (0, 1),
        (0, 9 + legend),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8.5,
        color=GREY,
    )


def _draw_metric(axes: Axes, run: Curves) -> int:
    """Draws the test metric, and returns the number of lines of its legend."""
    first, *others = select_panel(lambda name: run.column(name)[1])
    rounds, values = _column(run, first, first.name)
    axes.plot(rounds, values, color=BLUE, linewidth=2, label=first.title if others else None)
    for metric, dashes in zip(others, itertools.cycle(("--", ":", "-."))):
        axes.plot(*_column(run, metric, metric.name), dashes, color=GREY, linewidth=1.5, label=metric.title)
    _, low = _column(run, first, f"node_{first.name}_min")
    _, high = _column(run, first, f"node_{first.name}_max")
    if len(low) == len(high) == len(rounds) and list(low) != list(high):
        axes.fill_between(rounds, low, high, color=BLUE, alpha=0.15, linewidth=0, label="nodes, worst to best")
    _, low = _column(run, first, f"client_{first.name}_p10")
    _, high = _column(run, first, f"client_{first.name}_p90")
    if len(low) == len(high) == len(rounds) > 0:
        axes.fill_between(rounds, low, high, color=VERMILION, alpha=0.12, linewidth=0, label="clients, 10 % to 90 %")
        if first.better == "higher":
            worst = _column(run, first, f"client_{first.name}_min")
        else:
            worst = _column(run, first, f"client_{first.name}_max")
        name = metrics.find_worst_client(run.result or {}, first) or ""
        name = name.replace("$", r"\$")  # matplotlib would read $ as the start of a formula
        if name:
            client_name = f", at the end {truncate(name, 30)}"
        else:
            client_name = ""
        axes.plot(*worst, ":", color=VERMILION, linewidth=1.2, label=f"the worst client{client_name}")
    n_lines = _legend_above(axes)
    if first.name == "objective" and min(values) > 0:
        axes.set_yscale("log")  # first steps are large, but the last ones are of interest
    axes.set_ylabel(first.title + (", %" if first.percent else ""))
    if values:
        _label_end(axes, rounds[-1], values[-1], f"{values[-1]:.2f} %" if first.percent else f"{values[-1]:.4f}", BLUE)
    return n_lines


def _legend_above(axes: Axes) -> int:
    """Draws the legend of a panel above it, outside the curves, and returns the number of its lines."""
    labels = axes.get_legend_handles_labels()[1]
    if not labels:
        return 0
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=_COLUMNS,
        frameon=False,
        fontsize=9,
        labelcolor=GREY,
        borderaxespad=0.1,
        borderpad=0,
    )
    return -(-len(labels) // _COLUMNS)


def draw_legend_below(figure: Figure, axes: Axes) -> None:
    """Draws the legend of a panel below all panels. Long names are wrapped, so that they do not make a panel smaller.

    Args:
        figure: A figure with the layout `"constrained"`.
        axes: The panel.
    """
    handles, labels = axes.get_legend_handles_labels()
    # matplotlib would read $ as the start of a formula
    texts = ["\n".join(textwrap.wrap(label, _NAME)).replace("$", r"\$") for label in labels]
    columns = max(1, _NAME // (max(map(len, labels), default=0) + 8))
    figure.legend(handles, texts, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)


def _draw_custom(axes: Axes, run: Curves, custom: Sequence[Metric[None]]) -> None:
    """Draws the user's own metrics in a separate panel, since their scale is unknown."""
    for metric, color in zip(custom, itertools.cycle((BLUE, VERMILION, GREY, GREEN, PINK))):
        axes.plot(*run.column(metric.name), color=color, linewidth=1.5, label=metric.title)
    axes.set_ylabel("own metrics" if len(custom) > 1 else custom[0].title)
    _legend_above(axes)


def _column(run: Curves, metric: Metric[object], name: str) -> tuple[list[int], list[float]]:
    rounds, values = run.column(name)
    return rounds, [100 * value for value in values] if metric.percent else values


def _draw_violation(axes: Axes, run: Curves) -> None:
    """Draws the constraint violation of a run without noise, which has no epsilon; a log scale cannot show zeros."""
    for name, label, color in (("violation", "largest violation", VERMILION), ("stationarity", "stationarity", GREY)):
        rounds, values = run.column(name)
        axes.semilogy(rounds, [value if value > 0 else math.nan for value in values], color=color, label=label)
    axes.set_ylabel("KKT residuals")
    _legend_above(axes)


def _draw_epsilon(axes: Axes, run: Curves) -> None:
    target = run.target
    rounds, values = run.column("epsilon")
    rounds = [0, *rounds]
    values = [0.0, *values]
    axes.set_ylabel("epsilon spent")
    if not all(math.isfinite(value) for value in values):
        axes.text(0.5, 0.5, "infinite: not private", transform=axes.transAxes, ha="center", color=VERMILION)
        axes.set_yticks([])
        return
    draw_spent(axes, rounds, values, target, "" if target is None else f"target {target:g}")


def draw_spent(axes: Axes, rounds: Sequence[int], values: Sequence[float], limit: float | None, label: str) -> None:
    """Draws the privacy cost after each round, and a labelled line at the limit."""
    axes.plot(rounds, values, color=VERMILION, linewidth=2)
    axes.fill_between(rounds, values, color=VERMILION, alpha=0.12, linewidth=0)
    axes.set_ylim(0, 1.15 * max(limit or 0.0, *values))
    if limit is not None:
        axes.axhline(limit, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            label,
            (0, limit),
            (2, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=9,
            color=GREY,
        )
    _label_end(axes, rounds[-1], values[-1], f"{values[-1]:.3g}", VERMILION)


def _label_end(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    axes.plot([x], [y], "o", color=color, markersize=5, clip_on=False)
    axes.annotate(
        text,
        (x, y),
        (7, 0),
        textcoords="offset points",
        color=color,
        fontweight="bold",
        va="center",
        annotation_clip=False,
    )


def save_figure(figure: Figure, file: str | Path | None) -> Figure:
    """Writes a figure to a file if one is named, prints its path on standard error, and returns the figure.

    Raises:
        ConfigError: If the extension of the file is not a picture format.
        FedprivError: If the file cannot be written.
    """
    if file is None:
        return figure
    path = Path(file)
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise ConfigError("file", str(file), f"use a file name that ends in .png or one of {', '.join(formats)}")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise FedprivError(f"{path} could not be written ({error.strerror})") from error
    from rich.console import Console
    from rich.markup import escape

    Console(stderr=True, highlight=False, soft_wrap=True).print(escape(f"picture: {path.resolve()}"))
    return figure


def tidy_axes(axes: Axes) -> None:
    """Removes elements that distract from the curves."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#B0B4B8")
    axes.tick_params(colors=GREY, labelsize=9)
    axes.grid(axis="y", color="#E6E8EB", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.locator_params(axis="x", integer=True)
