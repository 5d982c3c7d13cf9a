"""Python warnings that point to the user's line, however deep in fedpriv they are raised."""

from __future__ import annotations

import inspect
import warnings

from fedpriv.errors import PromiseWarning


def warn(text: str) -> None:
    """Warn at the innermost line that is not fedpriv's own."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fedpriv":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, PromiseWarning, stacklevel=level)
