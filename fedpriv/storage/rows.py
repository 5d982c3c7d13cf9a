"""Rows of bytes in a file. Rows that a checkpoint refers to are never overwritten.

The caller keeps a table `[n, 2]` with each user's row index and the row's checksum. The file is never read as a whole,
and a process that is killed leaves every row of its last checkpoint unchanged (shadow paging). Rows are written with
system calls and not through a memory mapping, because on a full disk a write raises an error, but a memory mapping ends
the process.
"""

from __future__ import annotations

import os
import tempfile
import weakref
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.errors import FedprivError
from fedpriv.storage import files

Indices = NDArray[np.int64]


class RowFile:
    """Rows of one width in a file, which a table assigns to users.

    The rows of a table can be read while it is the newest table, the table before the newest, or the last argument of
    `saved`.

    Args:
        path: The file, which only its owner can access; created if there is none. None creates a temporary file, which
            is removed at the end of the process.
        width: Number of bytes of a row.

    Raises:
        FedprivError: If the file cannot be opened.
    """

    def __init__(self, path: Path | None, width: int) -> None:
        self._name = "a temporary file" if path is None else str(path)
        self._width = width
        try:
            if path is None:
                self._file = tempfile.TemporaryFile("r+b", buffering=0)  # noqa: SIM115 - lives as long as this object
            else:
                self._file = os.fdopen(files.disk.open(path, os.O_RDWR), "r+b", buffering=0)
        except OSError as error:
            raise FedprivError(
                f"{self._name} could not be opened ({error.strerror}); check its folder and permissions"
            ) from error
        weakref.finalize(self, self._file.close)
        self._folder = None if path is None else path.parent
        # for each row, True if the table of the last checkpoint refers to it
        self._is_saved: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        # rows that may be overwritten
        self._free: Indices = np.zeros(0, dtype=np.int64)

    def started(self, row: bytes, n: int) -> Tensor:
        """Overwrites the file with one row, and returns the table of n users that all have it."""
        try:
            files.disk.cut(self._file.fileno(), 0)
            files.disk.write_at(self._file.fileno(), 0, row)
        except OSError as error:
            raise self._not_written(error) from error
        self._is_saved = np.ones(1, dtype=np.bool_)
        self._free = np.zeros(0, dtype=np.int64)
        return torch.tensor([0, zlib.crc32(row)]).expand(n, 2).clone()

    def reopened(self, table: Tensor) -> Tensor:
        """Continues from the table of a checkpoint, and returns it.

        Raises:
            FedprivError: If the file lacks rows of the table.
        """
        end = os.fstat(self._file.fileno()).st_size // max(self._width, 1)
        needed = int(table[:, 0].max()) + 1
        if self._width and end < needed:
            raise self._damaged()
        self._is_saved = np.zeros(max(end, needed), dtype=np.bool_)
        self.saved(table)
        return table

    def read(self, entries: Tensor) -> NDArray[np.uint8]:
        """Returns the rows of some entries `[k, 2]` of a table: `[k, width]`.

        Raises:
            FedprivError: If a row differs from the one that was written.
        """
        content = bytearray(len(entries) * self._width)
        for number, (index, checksum) in enumerate(entries.tolist()):
            row = memoryview(content)[number * self._width : (number + 1) * self._width]
            self._file.seek(index * self._width)
            filled = 0
            while filled < self._width:
                count = self._file.readinto(row[filled:])
                if not count:
                    raise self._damaged()
                filled += count
            if zlib.crc32(row) != checksum:
                raise self._damaged()
        return np.frombuffer(content, dtype=np.uint8).reshape(len(entries), self._width)

    def written(self, table: Tensor, users: Tensor, rows: NDArray[np.uint8]) -> Tensor:
        """Writes rows `[k, width]` for `users [k]`, and returns the table in which they have these rows.

        Raises:
            FedprivError: If the rows cannot be written; the given table stays valid.
        """
        reused = self._free[: len(rows)]
        end = len(self._is_saved)
        indices = np.concatenate([reused, np.arange(end, end + len(rows) - len(reused))])
        try:
            for run in np.split(np.arange(len(indices)), np.flatnonzero(np.diff(indices) != 1) + 1):
                if len(run):
                    content = rows[run[0] : run[-1] + 1].tobytes()
                    files.disk.write_at(self._file.fileno(), int(indices[run[0]]) * self._width, content)
        except OSError as error:
            raise self._not_written(error) from error
        self._is_saved = np.concatenate([self._is_saved, np.zeros(len(rows) - len(reused), dtype=np.bool_)])
        earlier = np.unique(table[users, 0].numpy())
        self._free = np.concatenate([self._free[len(reused) :], earlier[~self._is_saved[earlier]]])
        checksums = torch.tensor([zlib.crc32(row.tobytes()) for row in rows], dtype=torch.int64)
        return table.index_copy(0, users, torch.stack([torch.from_numpy(indices), checksums], 1))

    def sync(self) -> None:
        """Waits until all rows are on the physical disk.

        Raises:
            FedprivError: If they may not be on the disk.
        """
        try:
            files.disk.sync(self._file.fileno())
            if self._folder is not None:
                files.disk.sync_folder(self._folder)
        except OSError as error:
            raise self._not_written(error) from error

    def saved(self, table: Tensor) -> None:
        """Marks this table as the table of the last checkpoint. All other rows, except the first row, may then be
        overwritten.
        """
        self._is_saved[:] = False
        self._is_saved[table[:, 0].numpy()] = True
        self._is_saved[0] = True  # the row of all users that never took part
        self._free = np.flatnonzero(~self._is_saved)

    def _not_written(self, error: OSError) -> FedprivError:
        return FedprivError(
            f"{self._name} could not be written ({error.strerror}); correct the cause, e.g. free some space, and "
            "resume the run"
        )

    def _damaged(self) -> FedprivError:
        return FedprivError(
            f"{self._name} is damaged, or belongs to another checkpoint; restore this file and the checkpoint from "
            "the same copy, or train into another folder"
        )
