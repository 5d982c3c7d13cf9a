"""How a round is made, where rows live, and how a run is split over processes; every engine gives the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fedpriv.distributed.mesh import Mesh
from fedpriv.network.sharding import single_process, split_clients, split_examples
from fedpriv.network.state_store import DiskStore, MemoryStore, StateStore

EngineName = Literal["local", "processes", "examples"]
StateName = Literal["memory", "disk"]

MESHES: dict[EngineName, Callable[[float], Mesh]] = {
    "local": single_process,
    "processes": split_clients,
    "examples": split_examples,
}
"""For each engine, a function from a timeout in seconds to the processes of the run."""

STATE_STORES: dict[StateName, Callable[[Path | None], StateStore]] = {"memory": MemoryStore, "disk": DiskStore}
"""Each takes a run's folder, if there is one, and keeps what clients keep between rounds."""
