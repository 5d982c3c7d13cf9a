"""Rows of bytes in a file, of which a checkpoint names some; those are not written over.

Who has which row, and its checksum, stands in a table `[n, 2]` that its user keeps: the file is never read whole, and a
process that is killed leaves every row that its last checkpoint names as it was (shadow paging). Rows are written, not
mapped into memory: on a full disk writing is an error, and a mapping ends the process.
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

Places = NDArray[np.int64]


class RowFile:
    """Rows of one width, for a table of who has which.

    A table stays readable while it is the newest, or the one before, or the last that `saved` was told.

    Args:
        path: The file, for its owner alone; created if there is none. None: a file without a name, which is gone with
            the process.
        width: Bytes of a row.

    Raises:
        FedprivError: it cannot be opened.
    """

    def __init__(self, path: Path | None, width: int) -> None:
        self._name, self._width = "a temporary file" if path is None else str(path), width
        try:
            if path is None:
                self._file = tempfile.TemporaryFile("r+b", buffering=0)  # noqa: SIM115 - lives as long as this object
            else:
                self._file = os.fdopen(files.disk.open(path, os.O_RDWR), "r+b", buffering=0)
        except OSError as error:
            raise FedprivError(f"{self._name} could not be opened ({error.strerror}); check the folder") from error
        weakref.finalize(self, self._file.close)
        self._folder = None if path is None else path.parent
        self._held: NDArray[np.bool_] = np.zeros(
            0, dtype=np.bool_
        )  # one for each row: whether the saved table names it
        self._free: Places = np.zeros(0, dtype=np.int64)

    def started(self, row: bytes, n: int) -> Tensor:
        """The table of n users who all have this row; what the file held before is gone."""
        try:
            files.disk.cut(self._file.fileno(), 0)
            files.disk.write_at(self._file.fileno(), 0, row)
        except OSError as error:
            raise self._not_written(error) from error
        self._held, self._free = np.ones(1, dtype=np.bool_), np.zeros(0, dtype=np.int64)
        return torch.tensor([0, zlib.crc32(row)]).expand(n, 2).clone()

    def reopened(self, table: Tensor) -> Tensor:
        """A table that was saved: the file goes on from there.

        Raises:
            FedprivError: the file lacks rows that the table names.
        """
        end, wanted = os.fstat(self._file.fileno()).st_size // max(self._width, 1), int(table[:, 0].max()) + 1
        if self._width and end < wanted:
            raise self._damaged()
        self._held = np.zeros(max(end, wanted), dtype=np.bool_)
        self.saved(table)
        return table

    def read(self, entries: Tensor) -> NDArray[np.uint8]:
        """Rows by their entries `[k, 2]` of a table: `[k, width]`.

        Raises:
            FedprivError: a row is not what was written.
        """
        found = bytearray(len(entries) * self._width)
        for number, (place, checksum) in enumerate(entries.tolist()):
            row = memoryview(found)[number * self._width : (number + 1) * self._width]
            self._file.seek(place * self._width)
            at = 0
            while at < self._width:
                if not (count := self._file.readinto(row[at:])):
                    raise self._damaged()
                at += count
            if zlib.crc32(row) != checksum:
                raise self._damaged()
        return np.frombuffer(found, dtype=np.uint8).reshape(len(entries), self._width)

    def written(self, table: Tensor, users: Tensor, rows: NDArray[np.uint8]) -> Tensor:
        """The table in which `users [k]` have these rows `[k, width]`.

        Raises:
            FedprivError: they cannot be written; the given table is as good as before.
        """
        reused = self._free[: len(rows)]
        end = len(self._held)
        places = np.concatenate([reused, np.arange(end, end + len(rows) - len(reused))])
        try:
            for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(places) != 1) + 1):
                if len(run):
                    content = rows[run[0] : run[-1] + 1].tobytes()
                    files.disk.write_at(self._file.fileno(), int(places[run[0]]) * self._width, content)
        except OSError as error:
            raise self._not_written(error) from error
        self._held = np.concatenate([self._held, np.zeros(len(rows) - len(reused), dtype=np.bool_)])
        before = np.unique(table[users, 0].numpy())
        self._free = np.concatenate([self._free[len(reused) :], before[~self._held[before]]])
        checksums = torch.tensor([zlib.crc32(row.tobytes()) for row in rows], dtype=torch.int64)
        return table.index_copy(0, users, torch.stack([torch.from_numpy(places), checksums], 1))

    def sync(self) -> None:
        """Wait until all rows are on the physical disk.

        Raises:
            FedprivError: they may not be.
        """
        try:
            files.disk.sync(self._file.fileno())
            if self._folder is not None:
                files.disk.sync_folder(self._folder)
        except OSError as error:
            raise self._not_written(error) from error

    def saved(self, table: Tensor) -> None:
        """A checkpoint names these rows from now on, and no others but the first."""
        self._held[:] = False
        self._held[table[:, 0].numpy()] = True
        self._held[0] = True  # of all that never took part
        self._free = np.flatnonzero(~self._held)

    def _not_written(self, error: OSError) -> FedprivError:
        return FedprivError(f"{self._name} could not be written ({error.strerror}); free some space and resume the run")

    def _damaged(self) -> FedprivError:
        return FedprivError(f"{self._name} is damaged, or not of this checkpoint; restore both or start the run anew")
