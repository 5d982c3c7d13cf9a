"""Write a run's files: files that are complete or absent, and files that only grow.

Every operation goes through `disk`, so that tests can make each one fail, be the last of its process, or be lost in a
power cut. Only the owner can read the files (mode 0600, whatever the umask). Symbolic links are not followed.
"""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from fedpriv.errors import FedprivError

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Disk:
    """The operations by which a run changes its folder."""

    def open(self, path: Path, flags: int) -> int:
        """Open for writing, and create the file if there is none; returns a descriptor."""
        fd = os.open(path, flags | os.O_CREAT | _NO_LINK, 0o600)
        if hasattr(os, "fchmod"):
            with suppress(PermissionError):  # another owner's file keeps its mode
                os.fchmod(fd, 0o600)
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """Write all of it."""
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]

    def write_at(self, fd: int, place: int, data: bytes) -> None:
        """Write all of it from a place on, over what is there."""
        os.lseek(fd, place, os.SEEK_SET)
        self.write(fd, data)

    def cut(self, fd: int, size: int) -> None:
        """Shorten a file."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Wait until the file's content is on the physical disk."""
        os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, replacing one that has the new name."""
        os.replace(old, new)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are on the physical disk."""
        if os.name == "nt":  # a folder cannot be opened there
            return
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


disk = Disk()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file to the physical disk, such that a crash or a full disk leaves the old one or the new one.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fd = disk.open(beside, os.O_WRONLY | os.O_TRUNC)
        try:
            disk.write(fd, content)
            disk.sync(fd)
        finally:
            os.close(fd)
        disk.rename(beside, path)
        disk.sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def read(path: Path) -> bytes:
    """Read a run's file.

    Raises:
        FileNotFoundError: there is none.
        FedprivError: it is a symbolic link.
    """
    with opened(path) as file:
        return file.read()


def opened(path: Path) -> BinaryIO:
    """Open a run's file for reading.

    Raises:
        FileNotFoundError: there is none.
        FedprivError: it is a symbolic link.
    """
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | _NO_LINK), "rb")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FedprivError(f"{path} is a symbolic link, which is not followed; put the file itself there") from None
        raise


class Appender:
    """A file that grows by whole lines. After a failure nothing more is written.

    Args:
        path: The file; created if there is none.
        keep: Number of bytes to keep of an existing file; all by default.

    Raises:
        OSError: it cannot be opened, is a symbolic link, or cannot be shortened.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self._path, self._fd = path, disk.open(path, os.O_RDWR | os.O_APPEND)
        weakref.finalize(self, os.close, self._fd)
        found = os.fstat(self._fd)
        self._is, self._size = (found.st_dev, found.st_ino), found.st_size
        self._named, self._synced = False, False
        self._failed: OSError | None = None
        if keep is not None and keep < self._size:
            disk.cut(self._fd, keep)
            self._size = keep
            self.sync()

    def append(self, line: bytes) -> None:
        """Add a line, or leave the file as it was.

        Raises:
            OSError: it cannot be written, something else moved, removed or changed the file, or an earlier operation
                failed.
        """
        self._check()
        try:
            disk.write(self._fd, line)
        except OSError as error:
            self._failed = error
            with suppress(OSError):
                disk.cut(self._fd, self._size)
            raise
        self._size += len(line)
        self._synced = False

    def sync(self) -> None:
        """Wait until all lines so far, and the file's name, are on the physical disk.

        Raises:
            OSError: they may not be. It is not tried again: after a failure fsync can succeed without having written.
        """
        if self._synced:
            return
        self._check()
        try:
            disk.sync(self._fd)
            if not self._named:
                disk.sync_folder(self._path.parent)
        except OSError as error:
            self._failed = error
            raise
        self._named = self._synced = True

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._is:
            raise OSError(errno.ESTALE, "it was moved or removed")
        if found.st_size != self._size:  # a line would not follow from the one before it
            raise OSError(errno.ESTALE, "something else wrote to it")
