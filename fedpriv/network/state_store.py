"""Where clients' state is kept between rounds: in memory, or in files of which a round reads the rows of its cohort."""

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
    """Keeps the state of a run's clients."""

    def begin(self, strategy: Strategy, params: Tensor, restart: TrainState | None) -> TrainState:
        """Where a run starts from parameters `[n, dim]`, all alike, or goes on from what a checkpoint holds."""
        ...

    def sync(self) -> None:
        """Wait until what a checkpoint will name is on the physical disk."""
        ...

    def saved(self, progress: TrainState) -> None:
        """A checkpoint of this progress is on the physical disk."""
        ...


class MemoryStore:
    """Tensors with a row for each client; a checkpoint holds them.

    Args:
        folder: The run's folder, which is not used.
    """

    def __init__(self, folder: Path | None) -> None:
        """Nothing to prepare."""

    def begin(self, strategy: Strategy, params: Tensor, restart: TrainState | None) -> TrainState:
        """See `StateStore`."""
        return restart or initial_state(strategy, params)

    def sync(self) -> None:
        """Nothing to wait for."""

    def saved(self, progress: TrainState) -> None:
        """Nothing to do."""


class DiskStore:
    """A file for each tensor of the clients' state; a checkpoint says who has which of its rows.

    Args:
        folder: The run's folder; None keeps the files without a name, and they are gone with the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._files = folder, list[RowFile]()

    def begin(self, strategy: Strategy, params: Tensor, restart: TrainState | None) -> TrainState:
        """See `StateStore`.

        Raises:
            ConfigError: the strategy's clients do not start alike.
            FedprivError: a file cannot be written, or is not that of the checkpoint.
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
        one, two = init(params[:1]), flatten_with_names(init(params[:2]))

        def stored(name: str, leaf: Leaf) -> Leaf | RowStore:
            if not isinstance(leaf, Tensor) or not leaf.ndim:
                return leaf
            other = two[name]
            if not isinstance(other, Tensor) or not torch.equal(other, leaf.expand_as(other)):
                fix = f"this strategy's clients start with different rows ({name}); leave it out"
                raise ConfigError("compute.state", "disk", fix)
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

        return tree_map_with_name(stored, one)

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
    """Rows `[n, ...]` of one type in a file.

    Attributes:
        file: Holds them.
        table: Who has which, `[n, 2]`.
        like: One of them, for its shape, type and device.
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
            fix = f"rows of clients' state were {tuple(self.like.shape)} and are {tuple(rows.shape[1:])}; leave it out"
            raise ConfigError("compute.state", "disk", fix)
        if cohort is None:
            cohort = torch.arange(len(self.table))
        else:
            cohort = cohort.cpu()
        return replace(self, table=self.file.written(self.table, cohort, _bytes(rows)))

    @property
    def stored(self) -> Tensor:
        """The table."""
        return self.table

    def restored(self, stored: Tensor) -> RowStore:
        """See `RowStore`."""
        return replace(self, table=self.file.reopened(stored.cpu()))


def _bytes(rows: Tensor) -> NDArray[np.uint8]:
    """`[k, ...] -> [k, bytes]`."""
    width = prod(rows.shape[1:]) * rows.element_size()
    return rows.detach().cpu().contiguous().flatten().view(torch.uint8).reshape(len(rows), width).numpy()
