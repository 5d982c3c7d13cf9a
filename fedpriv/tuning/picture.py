"""Draws the trials of a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.storage import BLUE, VERMILION, new_figure, write_png
from fedpriv.tuning.search import Outcome, Trial
from fedpriv.tuning.settings import SearchSettings
from fedpriv.tuning.space import Range, Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_PANELS = 8  # of fields


def draw(outcome: Outcome, space: Space, settings: SearchSettings, path: Path) -> None:
    """Draws the scores of a search, in order of trials and against each field, to a PNG file."""
    names = list(space.fields)[:_MAX_PANELS]
    scored = [trial for trial in outcome.trials if trial.score is not None]
    figure = new_figure(3.2 * (1 + len(names)), 3.2)
    panels = figure.subplots(1, 1 + len(names), squeeze=False)[0]
    _draw_in_order(panels[0], scored, settings)
    for axes, name in zip(panels[1:], names, strict=True):
        _draw_against_field(axes, scored, outcome, name, space)
    n_failed = len(outcome.trials) - len(scored)
    if n_failed:
        failed = f"; {n_failed} without a finite score"
    else:
        failed = ""
    figure.suptitle(f"{len(outcome.trials)} trials{failed}; all together {outcome.cost.spent}", fontsize=8)
    write_png(figure, path)


def _draw_in_order(axes: Axes, scored: Sequence[Trial], settings: SearchSettings) -> None:
    numbers = np.array([trial.number for trial in scored])
    scores = _scores(scored)
    if settings.maximizes:
        best_so_far = np.maximum.accumulate(scores)
    else:
        best_so_far = np.minimum.accumulate(scores)
    axes.plot(numbers, scores, "o", color=BLUE, label="trial")
    axes.step(numbers, best_so_far, where="post", color=VERMILION, label="best so far")
    axes.set_xlabel("trial", fontsize=8)
    axes.set_ylabel(settings.metric, fontsize=8)
    axes.legend(fontsize=7, frameon=False)
    axes.tick_params(labelsize=7)


def _draw_against_field(axes: Axes, scored: Sequence[Trial], outcome: Outcome, name: str, space: Space) -> None:
    field = space.fields[name]
    if isinstance(field, Range):
        kind = np.float64
    else:
        kind = np.str_
    axes.plot(np.array([trial.chosen[name] for trial in scored], kind), _scores(scored), "o", color=BLUE)
    if outcome.chosen is not None:
        best_value = np.array([outcome.chosen[name]], kind)
        best_score = np.array([outcome.score], np.float64)
        axes.plot(best_value, best_score, "*", color=VERMILION, markersize=13)
    if isinstance(field, Range) and field.log:
        axes.set_xscale("log")
    axes.set_xlabel(name, fontsize=8)
    axes.tick_params(labelsize=7)


def _scores(scored: Sequence[Trial]) -> NDArray[np.float64]:
    return np.array([trial.score for trial in scored], np.float64)
