"""A run's folder has one writer at a time, by a lock that the operating system frees when the process ends."""

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
from fedpriv.storage.files import write_whole

_LOCK = ".lock"
_OWN = (
    "config.yaml",
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
_RACES = 10  # how often a folder may be removed by its last holder while it is being taken


class RunFolder:
    """A folder that only this process may write until `close`. Within the process the newest `RunFolder` holds it.

    Args:
        path: The folder; created, for its owner alone, if there is none.

    Raises:
        FedprivError: another process holds it, or it cannot be locked.
    """

    _held: ClassVar[WeakValueDictionary[Path, RunFolder]] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        self.path, self._new, self._process = path, False, os.getpid()
        self._made, self._lock = self._take()
        # what the last holder was killed in the middle of
        for name in _OWN[:-1]:
            for torn in path.glob(f".{name}.*.new"):
                torn.unlink()

    @classmethod
    def new(cls, path: Path) -> Self:
        """Take a folder for a new run.

        Raises:
            FedprivError: it holds another run, or another process has it.
        """
        folder = cls(path)
        found = next((name for name in _OWN if os.path.lexists(path / name)), None)
        if found is None:
            folder._new = True
            return folder
        folder.close()
        fix = "choose another folder (--out)"
        if (path / "config.yaml").exists():
            raise FedprivError(f"{path} holds another run; go on with it (fedpriv resume {path}) or {fix}")
        raise FedprivError(f"{path} holds {found} of another run; {fix}")

    @classmethod
    def numbered(cls, path: Path) -> Self:
        """Take the folder `path-1`, `path-2`, ..., the first that is free, for a new run."""
        number = 1
        while True:
            try:
                _make(path.with_name(f"{path.name}-{number}"))
            except FileExistsError:
                number += 1
                continue
            folder = cls.new(path.with_name(f"{path.name}-{number}"))
            folder._made = True  # noqa: SLF001 - of the same class
            return folder

    def write(self, name: str, content: bytes) -> None:
        """Write a file such that it is complete or absent after a crash.

        Raises:
            FedprivError: it cannot be written, or another run has taken the folder.
        """
        self.check()
        try:
            write_whole(self.path / name, content)
        except OSError as error:
            fix = "free some space and resume the run"
            raise FedprivError(f"{self.path / name} could not be written ({error.strerror}); {fix}") from error

    def check(self) -> None:
        """Check that this object still holds the folder.

        Raises:
            FedprivError: it was closed, another object of this process took the folder, or this is a forked process.
        """
        if self._process != os.getpid():
            raise FedprivError(f"{self.path} belongs to process {self._process}, of which this one is a fork")
        if not self._lock.is_locked or self._held.get(self.path.resolve()) is not self:
            raise FedprivError(f"{self.path} was taken over by a later run of this process; go on with that one")

    def abandon(self) -> None:
        """Remove the files of a new run that could not be started and has released nothing. Other files stay."""
        if self._new:
            for path in (*(self.path / name for name in _OWN), *self.path.glob(_STATE)):
                path.unlink(missing_ok=True)
        self.close()
        if self._made:
            with suppress(OSError):  # not empty
                self.path.rmdir()

    def close(self) -> None:
        """Release the lock."""
        if self._lock.is_locked and self._held.get(self.path.resolve()) is self:
            del self._held[self.path.resolve()]
            (self.path / _LOCK).unlink(missing_ok=True)  # whoever waits for this file sees that it has no name
            self._lock.release(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> tuple[bool, FileLock]:
        """Whether the folder was made, and its lock."""
        before = self._held.get(self.path.resolve())
        if before is not None and before._process == os.getpid():  # noqa: SLF001 - of the same class
            self._held[self.path.resolve()] = self
            return False, before._lock  # noqa: SLF001
        for _ in range(_RACES):
            made = False
            with suppress(FileExistsError):
                _make(self.path)
                made = True
            lock = FileLock(
                self.path / _LOCK, mode=0o600, thread_local=False, fallback_to_soft=False, on_acquired=_sign
            )
            try:
                lock.acquire(blocking=False)
            except FileNotFoundError:
                continue  # the last holder removed the folder that it had made
            except Timeout:
                by = _holder(self.path / _LOCK)
                raise FedprivError(f"{self.path} is in use by {by}; wait until it is done, or stop it") from None
            except OSError as error:
                fix = "choose a folder that can be locked"
                raise FedprivError(f"{self.path} cannot be locked ({error.strerror}); {fix}") from error
            self._held[self.path.resolve()] = self
            return made, lock
        raise FedprivError(f"{self.path} is being created and removed by something else; choose another folder")


def _make(folder: Path) -> None:
    """Make a folder, and what it lies in, for its owner alone.

    Raises:
        FileExistsError: it is there.
    """
    for above in reversed([parent for parent in folder.parents if not parent.exists()]):
        with suppress(FileExistsError):
            above.mkdir(0o700)
            above.chmod(0o700)
    folder.mkdir(0o700)
    folder.chmod(0o700)


def _sign(lock: int) -> None:
    """Write into the lock who holds it: a courtesy to whoever is refused."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {platform.node()}".encode())


def _holder(lock: Path) -> str:
    with suppress(OSError):
        text = lock.read_text(encoding="utf-8", errors="replace")[:100]
        if text.startswith("process ") and text.isprintable():
            return text
    return "another process"
