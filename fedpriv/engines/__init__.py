"""Engines say where rows live and how a round is made: all give the same run, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from fedpriv.engines.keeping import InMemory, Keeping, OnDisk
from fedpriv.engines.local import Round, simulate
from fedpriv.engines.place import Here, Place
from fedpriv.engines.processes import Processes
from fedpriv.engines.processes.examples import SharedExamples

EngineName = Literal["local", "processes", "examples"]
StateName = Literal["memory", "disk"]

ENGINES: dict[str, Callable[..., Iterator[Round]]] = {
    "local": simulate,
    "processes": simulate,
    "examples": simulate,
}
"""Each takes what `fedpriv.engines.local.simulate` takes, and yields each finished round."""

PLACES: dict[EngineName, Callable[[float], Place]] = {
    "local": Here,
    "processes": Processes,
    "examples": SharedExamples,
}
"""Each takes a timeout in seconds, and says which of a run's clients are in this process."""

KEEPING: dict[StateName, Callable[[Path | None], Keeping]] = {"memory": InMemory, "disk": OnDisk}
"""Each takes a run's folder, if there is one, and keeps what clients keep between rounds."""
