"""Stores of clients' state between rounds: `MemoryStore` keeps all rows in memory, `DiskStore` in files.

With `DiskStore`, a round reads only the rows of its cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.network.rounds import TrainState, initial_state
from fedpriv.storage.rows import RowFile
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.state import Leaf, RowStore, flatten_with_names, tree_map_with_name, unflatten_like


class StateStore(Protocol):
    """Stores the state of a run's clients between rounds."""

    def begin(self, strategy: Strategy, params: Tensor, restart: TrainState | None) -> TrainState:
        """Returns the state with which a run starts.

        Args:
            strategy: The algorithm.
            params: The initial parameters, `[n, dim]`, all rows equal.
            restart: The state of a checkpoint, from which the run continues; None for a new run.
        """
        ...

    def sync(self) -> None:
        """Waits until all rows to which the next checkpoint refers are on the physical disk."""
        ...

    def saved(self, progress: TrainState) -> None:
        """Notes that a checkpoint of this state is on the physical disk, so that older rows are no longer needed."""
        ...


class MemoryStore:
    """Keeps tensors with a row for each client in memory. A checkpoint contains these tensors.

    Args:
        folder: The run's folder, which is not used.
    """

    def __init__(self, folder: Path | None) -> None:
        """Does nothing."""

    def begin(self, strategy: Strategy, params: Tensor, restart: TrainState | None) -> TrainState:
        """See `StateStore`."""
        return restart or initial_state(strategy, params)

    def sync(self) -> None:
        """Does nothing, because the checkpoint contains the rows."""

    def saved(self, progress: TrainState) -> None:
        """Does nothing, because there are no files with older rows."""


class DiskStore:
    """Keeps each tensor of the clients' state in a file. A checkpoint contains a table with the position of each
    client's row in this file.

    Args:
        folder: The run's folder. None creates temporary files, which are removed at the end of the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files = list[RowFile]()

    def begin(self, strategy: Strategy, params: Tensor, restart: TrainState | None) -> TrainState:
        """See `StateStore`.

        Raises:
            ConfigError: If the strategy's clients start with different rows.
            FedprivError: If a file cannot be written, or does not belong to the checkpoint.
        """
        if restart is None:
            tables = None
        else:
            tables = flatten_with_names(restart.local)
        first = initial_state(strategy, params, lambda init, rows: self._opened(init, rows, tables))
        if restart is None or tables is None:
            return first
        return replace(restart, local=unflatten_like(first.local, tables))

    def _opened(self, init: Callable[[Tensor], Any], params: Tensor, tables: dict[str, Leaf] | None) -> Any:  # noqa: ANN401 - any state
        """Returns the clients' initial state with each tensor of rows in a file."""
        # all clients start with the same row; a second client shows whether that is so
        first = init(params[:1])
        first_two = flatten_with_names(init(params[:2]))

        def stored(name: str, leaf: Leaf) -> Leaf | RowStore:
            if not isinstance(leaf, Tensor) or not leaf.ndim:
                return leaf
            other = first_two[name]
            if not isinstance(other, Tensor) or not torch.equal(other, leaf.expand_as(other)):
                fix = (
                    f"clients of this strategy start with different state ({name}), which is not supported on disk; "
                    "leave this setting out"
                )
                raise ConfigError("compute.client_state", "disk", fix)
            if self._folder is None:
                path = None
            else:
                path = self._folder / f"client_state.{len(self._files)}"
            file = RowFile(path, leaf[0].numel() * leaf.element_size())
            self._files.append(file)
            if tables is None:
                table = file.started(_bytes(leaf).tobytes(), len(params))
            else:
                table = torch.empty(0, 2)
            return DiskRows(file, table, leaf[0])

        return tree_map_with_name(stored, first)

    def sync(self) -> None:
        """See `StateStore`."""
        for file in self._files:
            file.sync()

    def saved(self, progress: TrainState) -> None:
        """See `StateStore`."""
        tables = [
            leaf for leaf in flatten_with_names(progress.local).values() if isinstance(leaf, Tensor) and leaf.ndim
        ]
        for file, table in zip(self._files, tables, strict=True):
            file.saved(table)


@dataclass(frozen=True)
class DiskRows(RowStore):
    """Rows `[n, ...]` of one shape and type in a file.

    Attributes:
        file: The file.
        table: Entry of each client in the file, `[n, 2]`.
        like: A row with the shape, type and device of all rows.
    """

    file: RowFile
    table: Tensor
    like: Tensor

    def select(self, cohort: Tensor | None) -> Tensor:
        """See `RowStore`."""
        if cohort is None:
            entries = self.table
        else:
            entries = self.table[cohort.cpu()]
        rows = torch.from_numpy(self.file.read(entries)).flatten()
        return rows.view(self.like.dtype).reshape(len(entries), *self.like.shape).to(self.like.device)

    def with_rows(self, cohort: Tensor | None, rows: Tensor) -> RowStore:
        """See `RowStore`."""
        if rows.shape[1:] != self.like.shape or rows.dtype != self.like.dtype:
            fix = (
                f"the state of a client had shape {tuple(self.like.shape)} and now has shape {tuple(rows.shape[1:])}, "
                "which is not supported on disk; leave this setting out"
            )
            raise ConfigError("compute.client_state", "disk", fix)
        if cohort is None:
            cohort = torch.arange(len(self.table))
        else:
            cohort = cohort.cpu()
        return replace(self, table=self.file.written(self.table, cohort, _bytes(rows)))

    @property
    def stored(self) -> Tensor:
        """The table, which a checkpoint contains instead of the rows."""
        return self.table

    def restored(self, stored: Tensor) -> RowStore:
        """See `RowStore`."""
        return replace(self, table=self.file.reopened(stored.cpu()))


def _bytes(rows: Tensor) -> NDArray[np.uint8]:
    """Returns the bytes of each row, `[k, ...] -> [k, bytes]`."""
    width = prod(rows.shape[1:]) * rows.element_size()
    return rows.detach().cpu().contiguous().flatten().view(torch.uint8).reshape(len(rows), width).numpy()
