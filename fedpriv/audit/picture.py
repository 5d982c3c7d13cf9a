"""Draws an audit: the verdict of each check, measured and claimed noise, and lower bounds on epsilon from guesses."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.audit.canaries import NAME as CANARIES
from fedpriv.audit.check_result import Audit, CheckResult
from fedpriv.audit.noise import NAME as NOISE
from fedpriv.storage import BLUE, GREEN, GREY, ORANGE, VERMILION, new_figure, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# each verdict also has a sign, for colour-blind readers
_COLOURS = {"held": GREEN, "found": VERMILION, "not checked": ORANGE}
_SIGNS = {"held": "+", "found": "X", "not checked": "?"}


def draw(audit: Audit, path: Path) -> None:
    """Draws an audit to a PNG file. The file is not private: it is computed from the data without noise."""
    figure = new_figure(9, 7.5)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    _list_findings(figure.add_subplot(grid[0, :]), audit)
    by_name = {finding.name: finding for finding in audit.findings}
    _draw_noise(figure.add_subplot(grid[1, 0]), by_name.get(NOISE))
    _draw_bounds(figure.add_subplot(grid[1, 1]), by_name.get(CANARIES))
    figure.suptitle(f"audit of {audit.subject} (not private: made from the data without noise)", fontsize=10)
    write_png(figure, path)


def _list_findings(axes: Axes, audit: Audit) -> None:
    axes.set_axis_off()
    axes.set_ylim(len(audit.findings) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    for row, finding in enumerate(audit.findings):
        colour = _COLOURS[finding.verdict]
        axes.text(0, row, f"{_SIGNS[finding.verdict]} {finding.verdict}", color=colour, fontweight="bold", va="center")
        axes.text(0.14, row, finding.name, fontweight="bold", va="center")
        evidence = "\n".join(textwrap.wrap(finding.evidence, 105)[:3])
        axes.text(0.26, row, evidence, fontsize=7, color=GREY, va="center")


def _draw_noise(axes: Axes, finding: CheckResult | None) -> None:
    axes.set_title("standard deviation of the noise, relative to the ledger", fontsize=9, loc="left")
    axes.axvline(1, color=GREY, linewidth=1, linestyle="--")
    axes.set_yticks([])
    if finding is None or "ratio" not in finding.numbers:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
        return
    ratio = finding.numbers["ratio"]
    error = 3 * finding.numbers["deviation_of_ratio"]
    axes.errorbar([ratio], [0], xerr=[error], fmt="o", color=_COLOURS[finding.verdict], capsize=4)
    axes.annotate(f"{ratio:.4f}", (ratio, 0), (0, 10), textcoords="offset points", ha="center", fontsize=8)
    half_width = max(abs(ratio - 1) + error, 0.02) * 1.3
    axes.set_xlim(1 - half_width, 1 + half_width)


def _draw_bounds(axes: Axes, finding: CheckResult | None) -> None:
    axes.set_title("epsilon: lower bound at 95 %", fontsize=9, loc="left")
    if finding is None:
        promised = None
    else:
        promised = finding.numbers.get("promised")
    if finding is None or promised is None:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_yticks([])
        return
    titles = {"clopper_pearson": "Clopper-Pearson", "one_run": "one-run guesses", "of_mu": "normal scores (mu)"}
    bars = [
        (f"{title}, {game}", finding.numbers[f"{game}: {key}"])
        for game in ("one run", "replicated runs")
        for key, title in titles.items()
        if f"{game}: {key}" in finding.numbers
    ]
    axes.barh([name for name, _ in bars], [value for _, value in bars], color=BLUE, height=0.6)
    axes.axvline(promised, color=_COLOURS[finding.verdict], linewidth=2)
    axes.annotate(f"claimed {promised:.3g}", (promised, 0), (-4, 0), textcoords="offset points", ha="right", fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
