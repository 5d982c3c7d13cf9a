"""The trials of a search as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.storage.files import write_whole
from fedpriv.tuning.search import Outcome, Trial
from fedpriv.tuning.settings import SearchSettings
from fedpriv.tuning.space import Range, Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#5F6368"
_MOST = 8  # fields that get a panel


def draw(outcome: Outcome, space: Space, settings: SearchSettings, path: Path) -> None:
    """Draw the scores in order, and against each field; to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(space.fields)[:_MOST]
    scored = [one for one in outcome.trials if one.score is not None]
    figure = Figure(figsize=(3.2 * (1 + len(names)), 3.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 1 + len(names), squeeze=False)[0]
    _in_order(panels[0], scored, settings)
    for axes, name in zip(panels[1:], names, strict=True):
        _against(axes, scored, outcome, name, space)
    failed = len(outcome.trials) - len(scored)
    if failed:
        lost = f"; {failed} without a finite score"
    else:
        lost = ""
    figure.suptitle(f"{len(outcome.trials)} trials{lost}; all together {outcome.price.spent}", fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())


def _in_order(axes: Axes, scored: Sequence[Trial], settings: SearchSettings) -> None:
    numbers, scores = np.array([one.number for one in scored]), _scores(scored)
    so_far = (np.maximum if settings.maximizes else np.minimum).accumulate(scores)
    axes.plot(numbers, scores, "o", color=_BLUE, label="trial")
    axes.step(numbers, so_far, where="post", color=_ORANGE, label="best so far")
    axes.set_xlabel("trial", fontsize=8)
    axes.set_ylabel(settings.metric, fontsize=8)
    axes.legend(fontsize=7, frameon=False)
    axes.tick_params(labelsize=7)


def _against(axes: Axes, scored: Sequence[Trial], outcome: Outcome, name: str, space: Space) -> None:
    field = space.fields[name]
    if isinstance(field, Range):
        kind = np.float64
    else:
        kind = np.str_
    axes.plot(np.array([one.chosen[name] for one in scored], kind), _scores(scored), "o", color=_BLUE)
    if outcome.chosen is not None:
        best = np.array([outcome.chosen[name]], kind), np.array([outcome.score], np.float64)
        axes.plot(*best, "*", color=_ORANGE, markersize=13)
    if isinstance(field, Range) and field.log:
        axes.set_xscale("log")
    axes.set_xlabel(name, fontsize=8)
    axes.tick_params(labelsize=7)


def _scores(scored: Sequence[Trial]) -> NDArray[np.float64]:
    return np.array([one.score for one in scored], np.float64)
