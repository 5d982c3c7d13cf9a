"""A run's folder, which one process at a time may write. The operating system releases the folder's lock when the
process ends.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from weakref import WeakValueDictionary

from filelock import FileLock, Timeout

from fedpriv.errors import FedprivError
from fedpriv.storage.files import make_folder, write_whole

_LOCK = ".lock"
_RUN_FILES = (
    "config.yaml",
    "settings.json",
    "ledger.jsonl",
    "checkpoint.pt",
    "metrics.jsonl",
    "metrics.csv",
    "model.pt",
    "node_models.pt",
    "result.json",
    "report.png",
)
_STATE = "client_state.*"
_RACES = 10  # attempts to lock a folder that its last holder removes at the same time


class RunFolder:
    """A folder that only this process may write until `close`. Within the process, only the newest `RunFolder` of the
    folder may write.

    Args:
        path: The folder; created, for its owner alone, if there is none.

    Raises:
        FedprivError: If another process has locked the folder, or it cannot be locked.
    """

    _holders: ClassVar[WeakValueDictionary[Path, RunFolder]] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = path.resolve()  # its name among the holders
        self._new = False
        self._process = os.getpid()
        self._is_created, self._lock = self._lock_folder()
        # remove unfinished files of a process that was killed while it wrote them
        for name in _RUN_FILES[:-1]:
            for torn in path.glob(f".{name}.*.new"):
                torn.unlink()

    @classmethod
    def new(cls, path: Path) -> Self:
        """Locks a folder for a new run.

        Raises:
            FedprivError: If the folder contains another run, or another process has locked it.
        """
        folder = cls(path)
        existing = next((name for name in _RUN_FILES if os.path.lexists(path / name)), None)
        if existing is None:
            folder._new = True
            return folder
        folder.close()
        fix = "use another folder (--out)"
        if (path / "config.yaml").exists():
            raise FedprivError(f"{path} contains another run; resume it (fedpriv resume {path}) or {fix}")
        raise FedprivError(f"{path} contains {existing} of another run; {fix}")

    @classmethod
    def numbered(cls, path: Path) -> Self:
        """Locks the first of the folders `path-1`, `path-2`, ... that does not exist, for a new run."""
        number = 1
        while True:
            try:
                _make_folder(path.with_name(f"{path.name}-{number}"))
            except FileExistsError:
                number += 1
                continue
            folder = cls.new(path.with_name(f"{path.name}-{number}"))
            folder._is_created = True  # noqa: SLF001 - of the same class
            return folder

    def write(self, name: str, content: bytes) -> None:
        """Writes a file such that it is either complete or absent after a crash.

        Raises:
            FedprivError: If the file cannot be written, or another run has locked the folder since.
        """
        self.check()
        try:
            write_whole(self.path / name, content)
        except OSError as error:
            fix = "correct the cause, e.g. free some space, and resume the run"
            raise FedprivError(f"{self.path / name} could not be written ({error.strerror}); {fix}") from error

    def check(self) -> None:
        """Checks that this object still has the lock of the folder.

        Raises:
            FedprivError: If this object was closed, another object of this process has the lock, or this is a forked
                process.
        """
        if self._process != os.getpid():
            raise FedprivError(
                f"{self.path} is in use by process {self._process}, and this process is a fork of that one: continue "
                "in the original process"
            )
        if not self._lock.is_locked or self._holders.get(self._key) is not self:
            raise FedprivError(f"{self.path} was taken over by a later run of this process; continue with that run")

    def abandon(self) -> None:
        """Removes the files of a new run that could not start and has released nothing. Other files stay."""
        if self._new:
            for path in (*(self.path / name for name in _RUN_FILES), *self.path.glob(_STATE)):
                path.unlink(missing_ok=True)
        self.close()
        if self._is_created:
            with suppress(OSError):  # not empty
                self.path.rmdir()

    def close(self) -> None:
        """Releases the lock."""
        if self._lock.is_locked and self._holders.get(self._key) is self:
            del self._holders[self._key]
            # before the release: a process that waits for this lock file then detects that it was removed
            (self.path / _LOCK).unlink(missing_ok=True)
            self._lock.release(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lock_folder(self) -> tuple[bool, FileLock]:
        """Locks the folder; returns True if it was created, and the lock."""
        earlier = self._holders.get(self._key)
        if earlier is not None and earlier._process == os.getpid():  # noqa: SLF001 - of the same class
            self._holders[self._key] = self
            return False, earlier._lock  # noqa: SLF001
        for _ in range(_RACES):
            is_created = False
            with suppress(FileExistsError):
                _make_folder(self.path)
                is_created = True
            lock = FileLock(
                self.path / _LOCK, mode=0o600, thread_local=False, fallback_to_soft=False, on_acquired=_sign
            )
            try:
                lock.acquire(blocking=False)
            except FileNotFoundError:
                continue  # the last holder removed the folder that it had created
            except Timeout:
                holder = _holder(self.path / _LOCK)
                raise FedprivError(
                    f"{self.path} is in use by {holder}; wait until it has finished, or stop it"
                ) from None
            except OSError as error:
                fix = "use a folder on a file system with file locks"
                raise FedprivError(f"{self.path} cannot be locked ({error.strerror}); {fix}") from error
            self._holders[self._key] = self
            return is_created, lock
        raise FedprivError(f"{self.path} is being created and deleted by another program; use another folder")


def _make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, for their owner only.

    Raises:
        FileExistsError: If the folder exists.
    """
    for parent_folder in reversed([parent for parent in folder.parents if not parent.exists()]):
        with suppress(FileExistsError):
            make_folder(parent_folder)
    make_folder(folder)


def _sign(lock: int) -> None:
    """Writes the name of this process into the lock file, for the error message of other processes."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {platform.node()}".encode())


def _holder(lock: Path) -> str:
    """Returns the name of the process that holds a lock, for an error message."""
    with suppress(OSError):
        text = lock.read_text(encoding="utf-8", errors="replace")[:100]
        if text.startswith("process ") and text.isprintable():
            return text
    return "another process"
