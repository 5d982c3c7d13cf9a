"""Lists the ways to divide a run among processes, and the stores of clients' state. All give the same results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fedpriv.distributed.mesh import Mesh
from fedpriv.network.sharding import single_process, split_clients, split_examples
from fedpriv.network.state_store import DiskStore, MemoryStore, StateStore

ParallelismName = Literal["none", "clients", "examples"]
StateName = Literal["memory", "disk"]

MESHES: dict[ParallelismName, Callable[[float], Mesh]] = {
    "none": single_process,
    "clients": split_clients,
    "examples": split_examples,
}
"""For each value of `compute.parallelism`, a function from a timeout in seconds to the processes of the run."""

STATE_STORES: dict[StateName, Callable[[Path | None], StateStore]] = {"memory": MemoryStore, "disk": DiskStore}
"""For each name, a class that stores clients' state between rounds. Its argument is the run's folder, or None."""
