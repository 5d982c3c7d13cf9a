"""Engines say where rows live and how a round is made: all give the same run, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from fedpriv.engines.keeping import InMemory, Keeping, OnDisk
from fedpriv.engines.local import Round, simulate

EngineName = Literal["local"]
StateName = Literal["memory", "disk"]

ENGINES: dict[str, Callable[..., Iterator[Round]]] = {"local": simulate}
"""Each takes what `fedpriv.engines.local.simulate` takes, and yields each finished round."""

KEEPING: dict[StateName, Callable[[Path | None], Keeping]] = {"memory": InMemory, "disk": OnDisk}
"""Each takes a run's folder, if there is one, and keeps what clients keep between rounds."""
