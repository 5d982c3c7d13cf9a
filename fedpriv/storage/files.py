"""Writes a run's files: files that are either complete or absent, and files that only grow.

Every operation is a method of `disk`. So tests can let any operation fail, end the process after it, or simulate a
power cut that loses it. Only the owner can read the files (mode 0600, regardless of the umask). Symbolic links are not
followed.
"""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from fedpriv.errors import FedprivError

__all__ = ["Appender", "erase", "make_folder", "read", "write_whole"]

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Disk:
    """The file operations by which a run changes its folder."""

    def open(self, path: Path, flags: int) -> int:
        """Opens a file for writing, creates it if there is none, and returns its descriptor."""
        fd = os.open(path, flags | os.O_CREAT | _NO_LINK, 0o600)
        if hasattr(os, "fchmod"):
            with suppress(PermissionError):  # another owner's file keeps its mode
                os.fchmod(fd, 0o600)
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """Writes all of the data."""
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(fd, remaining) :]

    def write_at(self, fd: int, offset: int, data: bytes) -> None:
        """Writes all of the data from the offset on, over the file's content there."""
        os.lseek(fd, offset, os.SEEK_SET)
        self.write(fd, data)

    def cut(self, fd: int, size: int) -> None:
        """Shortens a file."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Waits until the file's content is on the physical disk."""
        os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file, and replaces an existing file with the new name."""
        os.replace(old, new)

    def sync_folder(self, folder: Path) -> None:
        """Waits until the names in a folder are on the physical disk."""
        if os.name == "nt":  # Windows cannot open a folder
            return
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


disk = Disk()


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file to the physical disk; a crash or a full disk leaves either the old file or the new one.

    Raises:
        OSError: If the file cannot be written; the old one is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fd = disk.open(temporary, os.O_WRONLY | os.O_TRUNC)
        try:
            disk.write(fd, content)
            disk.sync(fd)
        finally:
            os.close(fd)
        disk.rename(temporary, path)
        disk.sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def make_folder(path: Path) -> None:
    """Creates a folder that only its owner can access. When the function returns, the folder's name is on the physical
    disk.

    If its name is not on the disk, a folder is lost in a power cut with all its contents, even if its files were
    synced.

    Raises:
        FileExistsError: If the folder exists.
        OSError: If it cannot be created.
    """
    path.mkdir(0o700)
    path.chmod(0o700)
    with suppress(PermissionError):  # a parent that is writable but not readable cannot be opened
        disk.sync_folder(path.parent)


def erase(path: Path, content: bytes = b"") -> None:
    """Overwrites a file with zeros, after it was removed or replaced by a new file of the same name.

    The old content may survive if a disk or file system writes to other blocks (flash, snapshots, copy-on-write), and
    in backups.

    Args:
        path: The file.
        content: Content of the new file; if it is empty, the file is removed.

    Raises:
        OSError: If the file cannot be written.
    """
    fd = os.open(path, os.O_RDWR | _NO_LINK)
    try:
        if content:
            write_whole(path, content)
        else:
            path.unlink()
        disk.write_at(fd, 0, bytes(os.fstat(fd).st_size))
        disk.sync(fd)
    finally:
        os.close(fd)


def read(path: Path) -> bytes:
    """Returns the content of a run's file.

    Raises:
        FileNotFoundError: If there is none.
        FedprivError: If it is a symbolic link.
    """
    with open_for_reading(path) as file:
        return file.read()


def open_for_reading(path: Path) -> BinaryIO:
    """Opens a run's file for reading.

    Raises:
        FileNotFoundError: If there is none.
        FedprivError: If it is a symbolic link.
    """
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | _NO_LINK), "rb")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FedprivError(
                f"{path} is a symbolic link, and symbolic links are not followed; replace the link by the file itself"
            ) from None
        raise


class Appender:
    """A file that grows by whole lines. After a failure nothing more is written.

    Args:
        path: The file; created if there is none.
        keep: Number of bytes to keep of an existing file; all by default.

    Raises:
        OSError: If it cannot be opened, is a symbolic link, or cannot be shortened.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self._path = path
        self._fd = disk.open(path, os.O_RDWR | os.O_APPEND)
        weakref.finalize(self, os.close, self._fd)
        # with these, it detects that something else replaced or changed the file
        status = os.fstat(self._fd)
        self._identity = (status.st_dev, status.st_ino)
        self._size = status.st_size
        # True if the file's name, and its content, are on the physical disk
        self._named = False
        self._synced = False
        self._failed: OSError | None = None
        if keep is not None and keep < self._size:
            disk.cut(self._fd, keep)
            self._size = keep
            self.sync()

    def append(self, line: bytes) -> None:
        """Appends a line, or leaves the file unchanged.

        Raises:
            OSError: If the line cannot be written, another program moved, removed or changed the file, or an earlier
                operation failed.
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
        """Waits until all lines so far, and the file's name, are on the physical disk.

        Raises:
            OSError: If the lines may not be on the disk. Later calls raise the same error, because after a failure
                fsync can succeed without having written anything.
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
        """Raises OSError if an earlier operation failed, or if another program replaced or changed the file."""
        if self._failed is not None:
            raise self._failed
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            raise OSError(errno.ESTALE, "the file was moved or removed")
        if status.st_size != self._size:  # a line would not follow the one before it
            raise OSError(errno.ESTALE, "another program wrote to the file")
