"""Figures of matplotlib that open no window, their colours, and their files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PINK, ORANGE, *_ = COLORS
GREY = "#5F6368"


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of this size in inches, with room for the labels of its panels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def write_png(figure: Figure, path: Path) -> None:
    """Writes a figure to a PNG file atomically."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
