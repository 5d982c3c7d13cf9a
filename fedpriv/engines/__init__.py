"""Engines say where rows live and how a round is made: all give the same run, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from fedpriv.engines.local import Round, simulate

EngineName = Literal["local"]

ENGINES: dict[str, Callable[..., Iterator[Round]]] = {"local": simulate}
"""Each takes what `fedpriv.engines.local.simulate` takes, and yields each finished round."""
