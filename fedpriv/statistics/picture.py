"""A picture of private statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpriv.errors import ConfigError
from fedpriv.statistics.estimates import Answer

_COLUMNS = 2
_INK, _LINE = "#0072B2", "#999999"


def check_picture(path: Path) -> None:
    """Raises for a picture that cannot be written, before its answers cost anything.

    Raises:
        ConfigError: If there is no such format or folder.
    """
    formats = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix.lstrip(".").lower() not in formats:
        raise ConfigError("picture", str(path), f"must end with a format, e.g. look.png: {', '.join(formats)}")
    if not path.parent.is_dir():
        raise ConfigError("picture", str(path), "must be in a folder that exists")


def draw(answers: Mapping[str, Answer], path: Path) -> None:
    """Draws all answers, each in a separate panel.

    Args:
        answers: The answers, by name.
        path: The file.
    """
    check_picture(path)
    lines = math.ceil(len(answers) / _COLUMNS)
    figure = Figure(figsize=(9, 2.8 * lines), dpi=120, layout="constrained")
    panels = figure.subplots(lines, min(_COLUMNS, len(answers)), squeeze=False).ravel()
    for panel, answer in zip(panels, answers.values(), strict=False):
        panel.set_title(answer.name, loc="left", fontsize=10)
        if answer.curve:
            _draw_curve(panel, answer)
        else:
            _draw_points(panel, answer)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    for panel in panels[len(answers) :]:
        panel.set_visible(False)
    figure.savefig(path)


def _draw_curve(panel: Axes, answer: Answer) -> None:
    (x_name, x), (y_name, y) = answer.curve.items()
    panel.plot(x, y, color=_INK)
    panel.set(xlabel=x_name, ylabel=y_name, ylim=(0, 1))
    for label, one in answer.values.items():
        if label.endswith("%"):
            share = float(label.removesuffix(" %")) / 100
            panel.plot([one.low, one.high], [share, share], color=_LINE, linewidth=4, alpha=0.6, solid_capstyle="butt")
            panel.plot([one.value], [share], "o", color=_INK, markersize=4)


def _draw_points(panel: Axes, answer: Answer) -> None:
    """Draws estimates of one unit with intervals: next to means, which have the column's unit, no numbers of rows."""
    values = dict(answer.values)
    if "mean" in values:
        values = {"mean": values["mean"]}
    means = {label: one for label, one in values.items() if not label.startswith("rows of ")}
    if means:
        values = means
    for position, one in enumerate(values.values()):
        if not math.isnan(one.low):
            panel.plot([one.low, one.high], [position, position], color=_LINE, linewidth=4, alpha=0.6)
        panel.plot([one.value], [position], "o", color=_INK, markersize=4)
    panel.set_yticks(range(len(values)), list(values), fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.05)
    if not values:
        panel.set_axis_off()
        panel.text(0, 0.9, "\n".join(answer.notes), fontsize=8, wrap=True, transform=panel.transAxes, va="top")
